-- Chains that completed or were cancelled before a time, and that no job waits for or may have to read.
--
-- ?1: the time. ?2: the limit.
--
-- The index is over times of creation: a chain that ended before a time was created before it.
SELECT latest_job.chain_id AS chain_id
FROM (
    SELECT 3 AS status
    UNION ALL
    SELECT 5
) AS ended
CROSS JOIN {prefix}job AS latest_job INDEXED BY {prefix}job_rest
    ON latest_job.latest = 1
    AND latest_job.status NOT IN (1, 2)
    AND latest_job.status = ended.status
    AND latest_job.chain_created_at < ?1
WHERE latest_job.ended_at < ?1
    AND NOT EXISTS (
        SELECT 1
        FROM {prefix}blocker AS blocker
        JOIN {prefix}job AS waiting
            ON waiting.id = blocker.job_id
            AND waiting.status <> 3
        WHERE blocker.chain_id = latest_job.chain_id
    )
LIMIT ?2
