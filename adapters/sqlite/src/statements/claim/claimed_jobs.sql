-- The jobs that run under a fence. Reads the index over leases, which has no more entries than there are running jobs.
--
-- ?1: the fence.
SELECT {job_columns}
FROM {prefix}job AS job INDEXED BY {prefix}job_lease
WHERE job.status = 2
    AND job.lease_until > -9223372036854775808
    AND job.fence = ?1
