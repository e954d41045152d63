-- The state of a job: its one row in whichever of the six tables has it, or no row if the state was lost.
--
-- Argument: the id of the job.
-- Reason: every table but `result` also has the number of the type, so that damage to one of the two copies is noticed.
SELECT
    0 AS table_number, 1 AS status, ready.attempt, ready.claims, ready.scheduled_at, ready.started_at,
    NULL::bigint AS ended_at, NULL::text AS completed_by, NULL::text AS owner, NULL::bigint AS leased_until,
    NULL::uuid AS fence, ready.settled_fence, ready.awaited, NULL::text AS output, NULL::integer AS remaining,
    ready.type_id
FROM {schema}.ready AS ready
WHERE ready.id = {argument}
UNION ALL
SELECT
    1, 1, later.attempt, later.claims, later.scheduled_at, later.started_at,
    NULL, NULL, NULL, NULL,
    NULL, later.settled_fence, later.awaited, NULL, NULL,
    later.type_id
FROM {schema}.later AS later
WHERE later.id = {argument}
UNION ALL
SELECT
    2, 0, waiting.attempt, waiting.claims, waiting.scheduled_at, waiting.started_at,
    NULL, NULL, NULL, NULL,
    NULL, waiting.settled_fence, waiting.awaited, NULL, waiting.remaining,
    waiting.type_id
FROM {schema}.waiting AS waiting
WHERE waiting.id = {argument}
UNION ALL
SELECT
    3, 2, running.attempt, running.claims, running.scheduled_at, running.started_at,
    NULL, NULL, running.owner, running.leased_until,
    running.fence, running.settled_fence, running.awaited, NULL, NULL,
    running.type_id
FROM {schema}.running AS running
WHERE running.id = {argument}
UNION ALL
SELECT
    4, 3, result.attempt, result.claims, result.scheduled_at, result.started_at,
    result.ended_at, result.completed_by, NULL, NULL,
    NULL, result.settled_fence, NOT result.final, result.output, NULL,
    NULL
FROM {schema}.result AS result
WHERE result.id = {argument}
UNION ALL
SELECT
    5, stopped.status, stopped.attempt, stopped.claims, stopped.scheduled_at, stopped.started_at,
    stopped.ended_at, NULL, NULL, NULL,
    NULL, stopped.settled_fence, stopped.awaited, NULL, NULL,
    stopped.type_id
FROM {schema}.stopped AS stopped
WHERE stopped.id = {argument}
