-- Running jobs without an end of their lease, which no other search finds: something other than this library has damaged
-- their rows.
--
-- Parameters as in expired.sql; ?1 is not used.
SELECT {job_columns}
FROM {prefix}job AS job INDEXED BY {prefix}job_lease
WHERE job.status = 2
    AND job.lease_until IS NULL
    AND job.type IN (SELECT value FROM json_each(?2))
    AND job.id NOT IN (SELECT unhex(value) FROM json_each(?3))
ORDER BY job.id
LIMIT ?4
