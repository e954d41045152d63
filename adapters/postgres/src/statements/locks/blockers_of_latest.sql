-- The blockers of the latest jobs of chains.
--
-- Parameters: $1 chains.
-- Answer: in the order of the chains, then of the positions.
SELECT blocker.chain_id AS id
FROM unnest($1::uuid[]) WITH ORDINALITY AS chain(id, place)
CROSS JOIN LATERAL (
    SELECT {latest_id:chain.id} AS id
    OFFSET 0
) AS latest
CROSS JOIN LATERAL (
    SELECT blocker.chain_id, blocker.position
    FROM {schema}.blocker AS blocker
    WHERE blocker.job_id = latest.id
    OFFSET 0
) AS blocker
ORDER BY chain.place, blocker.position
