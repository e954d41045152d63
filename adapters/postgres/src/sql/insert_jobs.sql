-- The jobs that did not exist, of those given. One that another transaction is about to create is waited for.
INSERT INTO {schema}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, blockers,
    priority, keyed, max_attempts, dedup_key, trace_context, input)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[], $7::bigint[],
    $8::integer[], $9::smallint[], $10::boolean[], $11::bigint[], $12::text[], $13::text[], $14::text[])
ON CONFLICT (id) DO NOTHING RETURNING id
