-- The next page of completed chains of a type that were created long enough ago.
--
-- Parameters: $1 chain type, $2 the time before which chains are old enough, $3 and $4 where the last page ended.
-- Values: `batch`.
-- Answer: the last job of each chain, and whether its end is old enough too.
SELECT result.id, result.chain_created_at, result.ended_at < $2 AS is_expired
FROM {schema}.result AS result
WHERE result.final
    AND result.chain_type_id = $1::integer
    AND result.chain_created_at < $2::bigint
    AND result.chain_created_at >= $3::bigint
    AND (result.chain_created_at, result.id) > ($3::bigint, $4::uuid)
ORDER BY result.chain_created_at, result.id
LIMIT {batch}
