-- The second half of a claim: gives the jobs their leases.
--
-- Rows: the columns of `claimed`.
UPDATE {prefix}job AS job
SET
    status = 2,
    attempt = min(attempt, 9223372036854775806) + 1,
    claims = min(claims, 9223372036854775806) + 1,
    started_at = claimed.started_at,
    lease_owner = claimed.worker,
    fence = claimed.fence,
    lease_until = claimed.lease_until
FROM (
    SELECT
        column1 AS seq,
        column2 AS started_at,
        column3 AS worker,
        column4 AS fence,
        column5 AS lease_until
    FROM (VALUES {rows})
) AS claimed
WHERE job.seq = claimed.seq
