-- The second half of a claim: gives the jobs their leases.
--
-- Rows: the columns of `claimed`.
WITH claimed (seq, started_at, worker, fence, lease_until) AS (VALUES {rows})
UPDATE {prefix}job AS job
SET
    status = 2,
    attempt = min(attempt, 9223372036854775806) + 1,
    claims = min(claims, 9223372036854775806) + 1,
    started_at = claimed.started_at,
    lease_owner = claimed.worker,
    fence = claimed.fence,
    lease_until = claimed.lease_until
FROM claimed
WHERE job.seq = claimed.seq
