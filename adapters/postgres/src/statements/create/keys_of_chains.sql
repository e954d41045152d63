-- The deduplication keys with which chains were started.
--
-- Parameters: $1 chains.
-- Answer: a row per chain that was started with a key.
SELECT id, type_id, deduplication_key
FROM {schema}.job
WHERE id = ANY ($1::uuid[]) AND chain_index = 0 AND deduplication_key IS NOT NULL
