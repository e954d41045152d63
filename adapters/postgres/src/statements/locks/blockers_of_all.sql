-- The blockers of all jobs of chains.
--
-- Parameters: $1 chains.
-- Answer: in the order of the chains, then of their jobs and positions.
SELECT blocker.chain_id AS id
FROM unnest($1::uuid[]) WITH ORDINALITY AS chain(id, place)
CROSS JOIN LATERAL (
    SELECT first.id, 0 AS chain_index
    FROM {schema}.job AS first
    WHERE first.id = chain.id AND first.chain_index = 0
    UNION ALL
    SELECT next.id, next.chain_index
    FROM {schema}.job AS next
    WHERE next.chain_id = chain.id AND next.chain_index > 0
    OFFSET 0
) AS job
CROSS JOIN LATERAL (
    SELECT blocker.chain_id, blocker.position
    FROM {schema}.blocker AS blocker
    WHERE blocker.job_id = job.id
    OFFSET 0
) AS blocker
ORDER BY chain.place, job.chain_index, blocker.position
