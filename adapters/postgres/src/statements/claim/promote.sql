-- Moves jobs that have become due from `later` to `ready`, the earliest first.
--
-- Parameters: $1 types, $2 the ageing step, $3 the time before which nothing is looked for.
-- Answer: how many were moved, and the smallest rank among them.
-- Locks: the rows of `later`. A row that another transaction has locked is skipped.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), due AS (
    DELETE FROM {schema}.later
    WHERE ctid = ANY (ARRAY(
        SELECT locked.row_address
        FROM unnest($1::integer[]) AS asked(type_id)
        CROSS JOIN LATERAL (
            SELECT later.ctid AS row_address
            FROM {schema}.later AS later
            WHERE later.type_id = asked.type_id
                AND later.scheduled_at >= $3::bigint
                AND later.scheduled_at <= (SELECT now FROM clock)
            ORDER BY later.scheduled_at
            LIMIT 1000
            FOR UPDATE SKIP LOCKED
        ) AS locked
    ))
    RETURNING *
), new_ready AS (
    INSERT INTO {schema}.ready (
        id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    )
    SELECT
        id, coalesce(rank, greatest(scheduled_at, 0) - priority * $2::bigint), scheduled_at, type_id, attempt, claims,
        priority, awaited, started_at, settled_fence
    FROM due
)
SELECT
    count(*) AS moved,
    min(coalesce(rank, greatest(scheduled_at, 0) - priority * $2::bigint)) AS smallest_rank
FROM due
