-- Chains, and all chains for which one of them waits, directly or through others.
--
-- Parameters: $1 chains.
-- Answer: each chain once, in order of id. What each of them waits for is read once. A dead or cancelled job counts as
-- waiting, because a retry would make it wait.
WITH RECURSIVE ahead(id) AS (
    SELECT given.id
    FROM unnest($1::uuid[]) AS given(id)
    UNION
    SELECT blocker.chain_id
    FROM ahead
    {blockers_ahead:ahead.id}
)
SELECT id
FROM ahead
ORDER BY id
