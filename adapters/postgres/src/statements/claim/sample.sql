-- How much of each type is ready.
--
-- Parameters: $1 types.
-- Values: `limit`, up to where jobs are counted; `looked_at`, how many jobs at the head of a queue are looked at for the one
-- that has been due longest. Literals, as in the claim.
-- Answer: a row per type, in the order given: how many jobs are ready, the earliest scheduled time, and the time.
-- Reason: index entries are counted, and few rows are read. What has become due since the last claim is still in `later`.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
)
SELECT
    in_ready.jobs + in_later.jobs AS ready,
    least(head.earliest, in_later.earliest) AS earliest,
    clock.now
FROM clock
CROSS JOIN unnest($1::integer[]) WITH ORDINALITY AS sampled_type(id, place)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (
        SELECT
        FROM {schema}.ready AS ready
        WHERE ready.type_id = sampled_type.id
        ORDER BY ready.rank, ready.id
        LIMIT {limit}
    ) AS counted
) AS in_ready
CROSS JOIN LATERAL (
    SELECT min(counted.scheduled_at) AS earliest
    FROM (
        SELECT ready.scheduled_at
        FROM {schema}.ready AS ready
        WHERE ready.type_id = sampled_type.id
        ORDER BY ready.rank, ready.id
        LIMIT {looked_at}
    ) AS counted
) AS head
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, min(counted.scheduled_at) AS earliest
    FROM (
        SELECT later.scheduled_at
        FROM {schema}.later AS later
        WHERE later.type_id = sampled_type.id AND later.scheduled_at <= clock.now
        ORDER BY later.scheduled_at
        LIMIT {limit}
    ) AS counted
) AS in_later
ORDER BY sampled_type.place
