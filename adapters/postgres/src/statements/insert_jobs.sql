-- The jobs that did not exist, of those given, and the time at which they were created. One that another transaction is
-- about to create is waited for.
--
-- The time is read in here and not before: the server has locked the table for writing by now, which `watermark` sees.
WITH clock AS MATERIALIZED (SELECT {now} AS now)
INSERT INTO {schema}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, blockers,
    priority, keyed, max_attempts, dedup_key, trace_context, input)
SELECT u.id, u.chain_id, u.chain_index, u.type_id, u.chain_type_id, coalesce(u.chain_created_at, clock.now), clock.now,
    u.blockers, u.priority, u.keyed, u.max_attempts, u.dedup_key, u.trace_context, u.input
FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[], $7::integer[],
    $8::smallint[], $9::boolean[], $10::bigint[], $11::text[], $12::text[], $13::text[]) AS u(id, chain_id, chain_index,
    type_id, chain_type_id, chain_created_at, blockers, priority, keyed, max_attempts, dedup_key, trace_context, input)
CROSS JOIN clock
ON CONFLICT (id) DO NOTHING RETURNING id, created_at
