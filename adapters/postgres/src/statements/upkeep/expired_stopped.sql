-- The next page of dead or cancelled chains of a type that were created long enough ago.
--
-- Parameters: $1 chain type, $2 the time before which chains are old enough, $3 and $4 where the last page ended, $5 status.
-- Values: `batch`.
-- Answer: the last job of each chain, and whether its end is old enough too.
SELECT stopped.id, stopped.chain_created_at, stopped.ended_at < $2 AS is_expired
FROM {schema}.stopped AS stopped
WHERE stopped.status = $5::smallint
    AND stopped.chain_type_id = $1::integer
    AND stopped.chain_created_at < $2::bigint
    AND stopped.chain_created_at >= $3::bigint
    AND (stopped.chain_created_at, stopped.id) > ($3::bigint, $4::uuid)
ORDER BY stopped.chain_created_at, stopped.id
LIMIT {batch}
