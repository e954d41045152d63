-- Frees the deduplication keys of chains that end.
--
-- Parameters: $1 chains.
DELETE FROM {schema}.open_key
WHERE chain_id = ANY ($1::uuid[])
