-- Writes the next jobs of items; a part of `settle/settle.sql`.
--
-- Argument: the items.
INSERT INTO {schema}.job (
    id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, blockers, priority, keyed,
    max_attempts, trace_context, input
)
SELECT
    item.next_id, job.chain_id, job.chain_index + 1, item.next_type, job.chain_type_id, job.chain_created_at, {clock}, 0,
    item.next_priority, job.keyed, item.max_attempts, item.trace_context, item.input
FROM {argument} AS item
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.job AS job
    WHERE job.id = item.id
    OFFSET 0
) AS job
--: if mixed
WHERE item.kind = 1
--: end
