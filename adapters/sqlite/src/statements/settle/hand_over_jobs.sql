-- Gives a lease to jobs that were inserted as running: the worker that created them has claimed them.
--
-- Rows: the columns of `claimed`.
WITH claimed (job, started_at, worker, fence, lease_until) AS (VALUES {rows})
UPDATE {prefix}job AS job
SET
    attempt = 1,
    claims = 1,
    started_at = claimed.started_at,
    lease_owner = claimed.worker,
    fence = claimed.fence,
    lease_until = claimed.lease_until
FROM claimed
WHERE job.id = claimed.job
