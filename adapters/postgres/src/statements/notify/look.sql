-- Looks at the store for a whole fleet: for due jobs of all types, and for processes that have died.
--
-- Parameters: $1 the channel, or null if no other process is to hear of it; $2 and $5 the announcement before and after the
-- time that the look took; $3 the key of this process, or null if it does not look for dead processes; $4 how many
-- microseconds before its time a job counts as due: a worker that claims too early is told when to come back.
-- Values: `most`, up to where the due jobs of a type are counted; `most_missed`, how many processes whose locks are free are
-- announced.
-- Answer: a row per type with due jobs (`type_name`, `number` of jobs); a row per process (`number` is its key, its last sign
-- of life, whether its lock is free); and one row, the last, whose `number` is how many microseconds the look took, with
-- whether some lease has expired.
-- Locks: the advisory locks that are free, for no longer than this takes.
-- Reason: the commit does not wait for the disk, because nothing is written but the announcement. The announcement
-- names the processes whose locks are free, for processes that run their types and do not look now.
WITH due AS MATERIALIZED (
    SELECT job_type.name, in_ready.jobs + in_later.jobs AS jobs
    FROM {schema}.job_type AS job_type
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
        FROM (
            SELECT
            FROM {schema}.ready AS ready
            WHERE ready.type_id = job_type.id
            ORDER BY ready.rank, ready.id
            LIMIT {most}
        ) AS counted
    ) AS in_ready
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
        FROM (
            SELECT
            FROM {schema}.later AS later
            WHERE later.type_id = job_type.id AND later.scheduled_at <= {now} + $4::bigint
            ORDER BY later.scheduled_at
            LIMIT {most}
        ) AS counted
    ) AS in_later
), other AS MATERIALIZED (
    SELECT process.key, process.renewed_at, pg_try_advisory_xact_lock(process.key) AS is_free
    FROM {schema}.process AS process
    WHERE process.key <> $3::bigint AND process.registered_at > {server_start}
)
SELECT due.name AS type_name, due.jobs AS number, NULL::bigint AS renewed_at, NULL::boolean AS is_free, NULL::boolean AS has_expired
FROM due
WHERE due.jobs > 0
UNION ALL
SELECT NULL, other.key, other.renewed_at, other.is_free, NULL
FROM other
UNION ALL
SELECT
    NULL,
    look.took,
    NULL,
    CASE
        WHEN $1::text IS NOT NULL
        THEN set_config('synchronous_commit', 'off', true) IS NULL
            OR pg_notify(
                $1::text,
                $2::text || look.took || $5::text || (
                    SELECT coalesce(string_agg('M' || missed.key || ':', ''), '')
                    FROM (
                        SELECT other.key
                        FROM other
                        WHERE other.is_free
                        LIMIT {most_missed}
                    ) AS missed
                )
            ) IS NULL
    END,
    EXISTS (
        SELECT
        FROM {schema}.running AS running
        WHERE running.leased_until <= {now}
    )
FROM (
    SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint AS took
    OFFSET 0
) AS look
