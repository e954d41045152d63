-- Running jobs whose leases have not expired, and whose workers have died.
--
-- Parameters as in expired.sql; ?5: a JSON array of workers.
SELECT {job_columns}
FROM {prefix}job AS job INDEXED BY {prefix}job_lease
WHERE job.status = 2
    AND job.lease_until > ?1
    AND job.lease_owner IN (SELECT value FROM json_each(?5))
    AND job.type IN (SELECT value FROM json_each(?2))
    AND job.id NOT IN (SELECT unhex(value) FROM json_each(?3))
ORDER BY job.lease_until, job.id
LIMIT ?4
