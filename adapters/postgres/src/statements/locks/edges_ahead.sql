-- What each of some chains waits for, or would wait for if it were retried.
--
-- Parameters: $1 chains.
-- Answer: a row per edge.
SELECT chain.id AS waiting_chain_id, blocker.chain_id AS blocker_chain_id
FROM unnest($1::uuid[]) AS chain(id)
{blockers_ahead:chain.id}
