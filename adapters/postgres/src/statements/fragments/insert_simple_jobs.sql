-- Writes the rows of new chains that have neither keys nor blockers; a part of `create/create_simple.sql`.
INSERT INTO {schema}.job (
    id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, blockers, priority, keyed,
    max_attempts, trace_context, input
)
SELECT
    new.id, new.id, 0, new.type_id, new.type_id, clock.now, clock.now, 0, new.priority, false,
    new.max_attempts, new.trace_context, new.input
FROM unnest($3::uuid[], $4::integer[], $5::smallint[], $6::bigint[], $7::text[], $8::text[])
    AS new(id, type_id, priority, max_attempts, trace_context, input)
CROSS JOIN clock
WHERE (SELECT types_exist FROM clock)
