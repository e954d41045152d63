-- Running jobs whose leases have expired. Running jobs are few, so one index serves all types, and the cost of reaping does
-- not depend on the number of types.
--
-- ?1: the time. ?2: a JSON array of types. ?3: a JSON array of job ids to leave out. ?4: the limit.
SELECT {job_columns}
FROM {prefix}job AS job INDEXED BY {prefix}job_lease
WHERE job.status = 2
    AND job.lease_until <= ?1
    AND job.type IN (SELECT value FROM json_each(?2))
    AND job.id NOT IN (SELECT unhex(value) FROM json_each(?3))
ORDER BY job.lease_until, job.id
LIMIT ?4
