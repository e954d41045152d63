-- The blocked jobs that wait for one of the given chains, and for no chain that is open.
--
-- ?1: a JSON array of chain ids.
SELECT DISTINCT
    job.seq AS seq,
    job.id AS id,
    job.chain_id AS chain_id,
    job.type AS type,
    job.scheduled_at AS scheduled_at,
    job.priority AS priority,
    job.attempt AS attempt
FROM json_each(?1) AS completed
CROSS JOIN {prefix}blocker AS blocker
    ON blocker.chain_id = unhex(completed.value)
CROSS JOIN {prefix}job AS job
    ON job.id = blocker.job_id
    AND job.status = 0
WHERE NOT EXISTS (
    SELECT 1
    FROM {prefix}blocker AS waiting INDEXED BY {prefix}blocker_open
    WHERE waiting.job_id = job.id
        AND waiting.done = 0
)
ORDER BY job.id
