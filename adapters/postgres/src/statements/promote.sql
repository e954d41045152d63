-- $1 types, $2 the ageing step, $3 the time before which nothing is looked for. Moves jobs that have become due over to
-- where claims look, those due first first. How many, and the smallest rank among them.
WITH clock AS MATERIALIZED (SELECT {now} AS now),
due AS (
    DELETE FROM {schema}.later WHERE ctid = ANY (ARRAY(
        SELECT x.tid FROM unnest($1::integer[]) AS t(id) CROSS JOIN LATERAL (
            SELECT l.ctid AS tid FROM {schema}.later AS l
            WHERE l.type_id = t.id AND l.scheduled_at >= $3::bigint AND l.scheduled_at <= (SELECT now FROM clock)
            ORDER BY l.scheduled_at LIMIT 1000 FOR UPDATE SKIP LOCKED
        ) AS x
    ))
    RETURNING *
), moved AS (
    INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at,
        settled_fence)
    SELECT id, coalesce(rank, greatest(scheduled_at, 0) - priority * $2::bigint), scheduled_at, type_id, attempt, claims, priority, awaited,
        started_at, settled_fence FROM due
)
SELECT count(*), min(coalesce(rank, greatest(scheduled_at, 0) - priority * $2::bigint)) FROM due
