-- Starts chains that differ in nothing but their inputs, as most chains that are started together do.
--
-- Parameters: $1 and $2 the types and their names, to be checked; $3 ids, $4 inputs, $5 the type, $6 the priority, $7 the
-- ageing step.
-- Answer: as many rows are written as there are chains; none if the database does not have the types. A unique violation if
-- an id is taken.
-- Locks: waits for another transaction that is about to create one of the jobs, for `lock_timeout` at most if that is set.
WITH clock AS MATERIALIZED (
    SELECT
        {now} AS now,
--: if limits_lock_wait
        set_config('lock_timeout', '{lock_timeout}', true) AS lock_timeout,
--: end
        {types_exist:$1::integer[], $2::text[]} AS types_exist
), new_job AS (
    INSERT INTO {schema}.job (
        id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, blockers, priority, keyed,
        max_attempts, trace_context, input
    )
    SELECT
        new.id, new.id, 0, $5::integer, $5::integer, {clock}, {clock}, 0, $6::smallint, false,
        NULL, NULL, new.input
    FROM unnest($3::uuid[], $4::text[]) AS new(id, input)
    WHERE (SELECT types_exist FROM clock)
)
INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited)
SELECT new.id, {clock} - $6::smallint * $7::bigint, {clock}, $5::integer, 0, 0, $6::smallint, false
FROM unnest($3::uuid[]) AS new(id)
WHERE (SELECT types_exist FROM clock)
