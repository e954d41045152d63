-- Starts chains that have neither keys nor blockers.
--
-- Parameters: $1 and $2 the types and their names, to be checked; $3 ids, $4 types, $5 priorities, $6 most attempts,
-- $7 trace contexts, $8 inputs, $9 the ageing step; and unless all are due now, $10 times and $11 delays.
-- Answer: as many rows are written by the last insertion as there are chains; none if the database does not have the types.
-- A unique violation if an id is taken.
-- Locks: waits for another transaction that is about to create one of the jobs, for `lock_timeout` at most if that is set.
-- Reason: the payloads go into one table only, so the arrays are read twice rather than kept.
WITH clock AS MATERIALIZED (
    SELECT
        {now} AS now,
--: if limits_lock_wait
        set_config('lock_timeout', '{lock_timeout}', true) AS lock_timeout,
--: end
        {types_exist:$1::integer[], $2::text[]} AS types_exist
)
--: if all_now
, new_job AS (
    {insert_simple_jobs}
)
INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited)
SELECT new.id, clock.now - new.priority * $9::bigint, clock.now, new.type_id, 0, 0, new.priority, false
FROM unnest($3::uuid[], $4::integer[], $5::smallint[]) AS new(id, type_id, priority)
CROSS JOIN clock
WHERE (SELECT types_exist FROM clock)
--: else
, new AS MATERIALIZED (
    SELECT
        given.id, given.type_id, given.priority,
        CASE
            WHEN given.at IS NOT NULL THEN greatest(given.at, clock.now)
            WHEN given.delay > 9223372036854775807 - clock.now THEN 9223372036854775807
            ELSE clock.now + given.delay
        END AS scheduled_at
    FROM unnest($3::uuid[], $4::integer[], $5::smallint[], $10::bigint[], $11::bigint[])
        AS given(id, type_id, priority, at, delay)
    CROSS JOIN clock
    WHERE (SELECT types_exist FROM clock)
), new_later AS (
    INSERT INTO {schema}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited)
    SELECT new.id, new.scheduled_at, new.type_id, 0, 0, new.priority, false
    FROM new
    CROSS JOIN clock
    WHERE new.scheduled_at > clock.now
), new_ready AS (
    INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited)
    SELECT
        new.id, new.scheduled_at - new.priority * $9::bigint, new.scheduled_at, new.type_id, 0, 0, new.priority, false
    FROM new
    CROSS JOIN clock
    WHERE new.scheduled_at <= clock.now
)
{insert_simple_jobs}
--: end
