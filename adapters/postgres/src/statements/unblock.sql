-- $1 jobs, each once, $2 how many of its edges have been taken, $3 the ageing step, $4 the chain that
-- has ended, or the last of them. Moves those that have none left on, notes which chain it was, and returns them. Their rows
-- have been locked.
WITH clock AS MATERIALIZED (SELECT {now} AS now),
fewer AS (
    UPDATE {schema}.waiting AS w SET remaining = w.remaining - u.edges
    FROM unnest($1::uuid[], $2::integer[]) AS u(id, edges)
    WHERE w.id = u.id AND w.remaining > u.edges
    RETURNING w.id
), free AS (
    DELETE FROM {schema}.waiting AS w USING unnest($1::uuid[], $2::integer[], $4::uuid[]) AS u(id, edges, ended)
    WHERE w.id = u.id AND w.remaining <= u.edges
    RETURNING w.*, u.ended
), marked AS (
    UPDATE {schema}.blocker AS b SET ended_last = true
    FROM free AS f WHERE b.chain_id = ANY (ARRAY[f.ended]) AND b.job_id = ANY (ARRAY[f.id])
), later AS (
    INSERT INTO {schema}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence)
    SELECT id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    FROM free CROSS JOIN clock WHERE scheduled_at > now
), ready AS (
    INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at,
        settled_fence)
    SELECT id, now - priority * $3::bigint, now, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    FROM free CROSS JOIN clock WHERE scheduled_at <= now
)
SELECT free.id, j.chain_id, free.type_id FROM free JOIN {schema}.job AS j ON j.id = free.id ORDER BY free.id
