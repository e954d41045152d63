-- The jobs that have chains as blockers and are not completed.
--
-- Parameters: $1 chains.
-- Answer: a row per chain and job, with the chain of the job, in the order of the chains.
-- Locks: none. It runs after the chains were locked, as a statement of its own. A transaction that creates a job with a
-- blocker has the blocker locked, so no edge can be missed.
SELECT blocker.chain_id, blocker.job_id, job.chain_id AS job_chain_id
FROM unnest($1::uuid[]) WITH ORDINALITY AS chain(id, place)
CROSS JOIN LATERAL (
    SELECT DISTINCT blocker.chain_id, blocker.job_id
    FROM {schema}.blocker AS blocker
    WHERE blocker.chain_id = chain.id
    OFFSET 0
) AS blocker
JOIN {schema}.job AS job
    ON job.id = blocker.job_id
WHERE (
    SELECT result.id
    FROM {schema}.result AS result
    WHERE result.id = blocker.job_id
    LIMIT 1
) IS NULL
ORDER BY chain.place, blocker.job_id
