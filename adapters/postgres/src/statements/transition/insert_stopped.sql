-- Puts jobs into `stopped`.
--
-- Parameters: $1 ids, $2 scheduled times, $3 attempts, $4 claims, $5 starts, $6 settled fences, $7 ends, $8 creation of the
-- chains, $9 types of the chains, $10 whether the chain is awaited, $11 statuses, $12 types.
INSERT INTO {schema}.stopped (
    id, scheduled_at, attempt, claims, started_at, settled_fence, ended_at, chain_created_at, chain_type_id, awaited,
    status, type_id
)
SELECT *
FROM unnest(
    $1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], $6::uuid[], $7::bigint[], $8::bigint[],
    $9::integer[], $10::boolean[], $11::smallint[], $12::integer[]
)
