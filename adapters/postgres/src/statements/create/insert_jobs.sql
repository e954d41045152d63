-- Writes the rows of new jobs that do not exist yet.
--
-- Parameters: $1 ids, $2 chains, $3 indexes in the chain, $4 types, $5 types of the chains, $6 creation of the chains (null:
-- now), $7 numbers of blockers, $8 priorities, $9 whether the chain has a key, $10 most attempts, $11 deduplication keys,
-- $12 trace contexts, $13 inputs.
-- Answer: a row per job that did not exist, with the time of its creation.
-- Locks: waits for another transaction that is about to create one of the jobs.
-- Reason: the time is read in here and not before. The server has locked the table for writing by now, which the
-- watermark sees.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
)
INSERT INTO {schema}.job (
    id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, blockers, priority, keyed,
    max_attempts, deduplication_key, trace_context, input
)
SELECT
    new.id, new.chain_id, new.chain_index, new.type_id, new.chain_type_id, coalesce(new.chain_created_at, clock.now),
    clock.now, new.blockers, new.priority, new.keyed, new.max_attempts, new.deduplication_key, new.trace_context, new.input
FROM unnest(
    $1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[], $7::integer[], $8::smallint[],
    $9::boolean[], $10::bigint[], $11::text[], $12::text[], $13::text[]
) AS new(
    id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, blockers, priority, keyed, max_attempts,
    deduplication_key, trace_context, input
)
CROSS JOIN clock
ON CONFLICT (id) DO NOTHING
RETURNING id, created_at
