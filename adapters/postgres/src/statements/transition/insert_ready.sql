-- Puts jobs into `ready`.
--
-- Parameters: $1 ids, $2 scheduled times, $3 attempts, $4 claims, $5 starts, $6 settled fences, $7 types, $8 priorities,
-- $9 whether the chain is awaited, $10 ranks.
INSERT INTO {schema}.ready (
    id, scheduled_at, attempt, claims, started_at, settled_fence, type_id, priority, awaited, rank
)
SELECT *
FROM unnest(
    $1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], $6::uuid[], $7::integer[], $8::smallint[],
    $9::boolean[], $10::bigint[]
)
