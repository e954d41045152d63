-- The given chains and all chains for which they wait, directly or through others. Each chain is visited once. The edges
-- are read apart (blocker_edges.sql), only if one of these chains is the one that the search is for.
--
-- ?1: a JSON array of chain ids.
WITH RECURSIVE reached (chain) AS (
    SELECT unhex(value)
    FROM json_each(?1)
    UNION
    SELECT blocker.chain_id
    FROM reached
    CROSS JOIN {prefix}job AS latest_job
        ON latest_job.seq = {latest_job_of(reached.chain)}
        AND latest_job.status IN (0, 4, 5)
    CROSS JOIN {prefix}blocker AS blocker
        ON blocker.job_id = latest_job.id
        AND blocker.done = 0
)
SELECT chain
FROM reached
