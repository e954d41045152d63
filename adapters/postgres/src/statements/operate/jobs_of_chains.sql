-- The jobs of chains.
--
-- Parameters: $1 chains.
SELECT first.id
FROM {schema}.job AS first
WHERE first.id = ANY ($1::uuid[]) AND first.chain_index = 0
UNION ALL
SELECT next.id
FROM {schema}.job AS next
WHERE next.chain_id = ANY ($1::uuid[]) AND next.chain_index > 0
