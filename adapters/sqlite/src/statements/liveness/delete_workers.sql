-- Deletes the workers of processes, except workers that have leases.
--
-- ?1: a JSON array of keys of processes.
DELETE FROM {prefix}process
WHERE key IN (SELECT unhex(value) FROM json_each(?1))
    AND NOT EXISTS (
        SELECT 1
        FROM {prefix}job AS job INDEXED BY {prefix}job_lease
        WHERE job.status = 2
            AND job.lease_until > -9223372036854775808
            AND job.lease_owner = {prefix}process.worker
    )
