-- Deletes the edges of completed jobs of other chains to chains.
--
-- Parameters: $1 chains.
DELETE FROM {schema}.blocker
WHERE chain_id = ANY ($1::uuid[])
