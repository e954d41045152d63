-- Takes running jobs whose leases have expired, the oldest first, and those of processes that are taken for dead.
--
-- Parameters: $1 types, $2 jobs that are left alone, $3 how many, $4 workers of the dead processes.
-- Answer: whole jobs as they were, with the time and the rank that the job has kept, if it has one.
-- Locks: the rows of `running`. A row that another transaction has locked is skipped.
WITH reaped AS (
    DELETE FROM {schema}.running
    WHERE ctid = ANY (ARRAY(
        SELECT running.ctid
        FROM {schema}.running AS running
        WHERE (running.leased_until <= {now} OR running.owner = ANY ($4::text[]))
            AND running.id <> ALL ($2::uuid[])
            AND {may_be_reaped}
        ORDER BY running.leased_until, running.id
        LIMIT $3::bigint
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
)
SELECT
    {job_columns},
    {now} AS now,
    state.rank
FROM (
    SELECT
        reaped.*, 3 AS table_number, 2 AS status, NULL::bigint AS ended_at, NULL::text AS completed_by,
        NULL::text AS output, NULL::integer AS remaining
    FROM reaped
) AS state
JOIN {schema}.job AS job
    ON job.id = state.id
CROSS JOIN (
    SELECT NULL::integer AS attempt, NULL::bigint AS at, NULL::text AS message
) AS failure
ORDER BY state.leased_until, state.id
