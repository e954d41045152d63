-- The end that almost every job has: its attempt finished it, no job waits for the chain, and no other row has the
-- deduplication key. A job that does not match is settled by the general way (apply_transitions.sql).
--
-- Rows: the columns of `ended`.
--
-- The plus signs keep SQLite from building an index over the rows and scanning all jobs.
UPDATE {prefix}job AS job INDEXED BY {prefix}job_id
SET
    status = 3,
    ended_at = ended.ended_at,
    completed_by = ended.worker,
    error_attempt = NULL,
    error_at = NULL,
    error = NULL,
    settled_fence = ended.fence,
    output = ended.output,
    open_key = NULL,
    lease_owner = NULL,
    lease_until = NULL,
    fence = NULL
FROM (
    SELECT
        column1 AS job,
        column2 AS fence,
        column3 AS worker,
        column4 AS output,
        column5 AS ended_at
    FROM (VALUES {rows})
) AS ended
WHERE job.id = +ended.job
    AND job.status = 2
    AND job.fence = +ended.fence
    AND (job.chain_keyed = 0 OR job.chain_index = 0)
    AND NOT EXISTS (
        SELECT 1
        FROM {prefix}blocker AS waiting
        WHERE waiting.chain_id = job.chain_id
            AND waiting.done = 0
    )
