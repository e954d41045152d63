-- Inserts jobs, and makes each the latest of its chain.
--
-- Rows: the columns of `new`. `chain_id` and `chain_type` are null where they are the id and the type of the job itself.
INSERT INTO {prefix}job (
    id,
    chain_id,
    chain_index,
    latest,
    status,
    type,
    chain_type,
    chain_created_at,
    chain_keyed,
    created_at,
    scheduled_at,
    priority,
    rank,
    due,
    attempt,
    claims,
    max_attempts,
    blockers,
    deduplication_key,
    open_key,
    trace_context,
    input
)
SELECT
    id,
    coalesce(chain_id, id),
    chain_index,
    1,
    status,
    type,
    coalesce(chain_type, type),
    chain_created_at,
    chain_keyed,
    created_at,
    scheduled_at,
    priority,
    rank,
    due,
    0,
    0,
    max_attempts,
    blockers,
    deduplication_key,
    deduplication_key,
    trace_context,
    input
FROM (
    SELECT
        column1 AS id,
        column2 AS chain_id,
        column3 AS chain_index,
        column4 AS status,
        column5 AS type,
        column6 AS chain_type,
        column7 AS chain_created_at,
        column8 AS chain_keyed,
        column9 AS created_at,
        column10 AS scheduled_at,
        column11 AS priority,
        column12 AS rank,
        column13 AS due,
        column14 AS max_attempts,
        column15 AS blockers,
        column16 AS deduplication_key,
        column17 AS trace_context,
        column18 AS input
    FROM (VALUES {rows})
) AS new
WHERE id IS NOT NULL
