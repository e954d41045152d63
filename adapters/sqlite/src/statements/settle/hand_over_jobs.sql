-- Gives a lease to jobs that were inserted as running: the worker that created them has claimed them.
--
-- Rows: the columns of `claimed`.
UPDATE {prefix}job AS job
SET
    attempt = 1,
    claims = 1,
    started_at = claimed.started_at,
    lease_owner = claimed.worker,
    fence = claimed.fence,
    lease_until = claimed.lease_until
FROM (
    SELECT
        column1 AS job,
        column2 AS started_at,
        column3 AS worker,
        column4 AS fence,
        column5 AS lease_until
    FROM (VALUES {rows})
) AS claimed
WHERE job.id = claimed.job
