-- The same as finish_jobs.sql for one job.
--
-- ?1: job. ?2: fence. ?3: worker. ?4: output. ?5: ended at.
UPDATE {prefix}job AS job INDEXED BY {prefix}job_id
SET
    status = 3,
    ended_at = ?5,
    completed_by = ?3,
    error_attempt = NULL,
    error_at = NULL,
    error = NULL,
    settled_fence = ?2,
    output = ?4,
    open_key = NULL,
    lease_owner = NULL,
    lease_until = NULL,
    fence = NULL
WHERE job.id = ?1
    AND job.status = 2
    AND job.fence = ?2
    AND (job.chain_keyed = 0 OR job.chain_index = 0)
    AND NOT EXISTS (
        SELECT 1
        FROM {prefix}blocker AS waiting
        WHERE waiting.chain_id = job.chain_id
            AND waiting.done = 0
    )
