-- Takes the first jobs of all given types together: moves them from `ready` to `running`, with a lease and a fence.
--
-- Parameters: $1 types, in order of their numbers; $2 how many jobs; $3 leases in microseconds, in the order of the types;
-- $4 worker; $5 fence; $6 whether to take jobs although jobs have become due in `later`; $7 the rank and $8 the time before
-- which nothing is looked for (see `scan_start.rs`). If the claim is limited in bytes (`weighs`): $9 how many jobs are taken
-- whatever their inputs weigh, $10 how many bytes the inputs of all jobs may have otherwise, $11 how many bytes a job with
-- blockers counts for besides its input, in the order of the types: those of its blockers' outputs.
-- Values: `type_place`, the place of the type of `claimed` among the types; `reach`, how many rows of `ready` are looked at: a literal, because a plan for any limit would sort the backlog.
-- Answer: a row per job. And one row, the last, that has no job, with what is the same for all: the time; when the next job
-- in `later` is due; how many rows of `ready` were looked at, if fewer jobs were taken than asked for; how many index
-- entries were read, of `ready` and of `later`; the ids of rows of `ready` that had no job (they are deleted like the
-- others, because to put them back would cost every claim, and are reported); how many jobs were put back.
-- Locks: the rows of `ready`. A row that another transaction has locked is skipped: each row is locked before it is
-- deleted, which costs as much as deleting it. Or (`waits`) it is waited for, for as long as `lock_timeout` says, and the
-- statement fails after that; a row that the other transaction has deleted is missing then.
-- Reasons:
-- * A claim that is forgotten in a crash of the server leaves a job that is ready again, and the fence refuses the old
--   attempt. So the commit does not wait for the disk (`synchronous_commit`).
-- * If a job in `later` has become due, nothing is taken unless $6 says so: it must be moved to `ready` first, or the order
--   of claiming would be wrong.
-- * The server counts index entries per session, so they are counted before and after. The first branch begins when `clock`
--   has been read, and the last row of the answer is made when all others have been.
-- * The rank goes with a job that was claimed before, because it may be one that the job has kept. Otherwise it follows
--   from the scheduled time.
-- * Jobs are looked up one by one (`OFFSET 0`), whatever the server believes that the tables hold: a plan that was made
--   when they looked empty would read all of them for each.
-- * A job for which there are no bytes left is put back with a new row of the same content, before any other transaction
--   can see that it was taken. The size of a text is known without reading its bytes.
WITH clock AS MATERIALIZED (
    SELECT
        {now} AS now,
        set_config('synchronous_commit', 'off', true) AS synchronous_commit,
--: if waits
        set_config('lock_timeout', '{lock_timeout}', true) AS lock_timeout,
--: end
        pg_stat_get_xact_tuples_returned(E'{schema_text}.ready_claim'::regclass) AS ready_entries,
        pg_stat_get_xact_tuples_returned(E'{schema_text}.later_due'::regclass) AS later_entries
), next_later AS MATERIALIZED (
    SELECT min(first_later.scheduled_at) AS scheduled_at
    FROM clock
    CROSS JOIN unnest($1::integer[]) AS asked(type_id)
    CROSS JOIN LATERAL (
        SELECT later.scheduled_at
        FROM {schema}.later AS later
        WHERE later.type_id = asked.type_id AND later.scheduled_at >= $8::bigint
        ORDER BY later.scheduled_at
        LIMIT 1
    ) AS first_later
)
--: if few_types
-- One ordered and limited branch per type, merged as far as rows are needed.
, candidate AS MATERIALIZED (
    SELECT branch.row_address
    FROM (
        {branches}
    ) AS branch
    ORDER BY branch.rank, branch.id
    LIMIT {reach}
)
--: else
-- The text for any number of types. The first job of each type is read. Of these, the `reach` smallest are of the only
-- types that can have one of the `reach` first jobs of all. A few jobs of each of these types are read (`near`), which gives
-- a bound for the last of the first jobs (`bound`); and of the types whose few jobs all lie before that bound, the others up
-- to the bound (`far`). With the square root of `reach` for `few`, no more than twice `reach` times that root are read,
-- whatever the backlog is.
, head AS MATERIALIZED (
    SELECT asked.type_id, first_ready.rank, first_ready.id
    FROM unnest($1::integer[]) AS asked(type_id)
    CROSS JOIN LATERAL (
        SELECT ready.rank, ready.id
        FROM {schema}.ready AS ready
        WHERE ready.type_id = asked.type_id AND ready.rank >= {counted_scan_start}
        ORDER BY ready.rank, ready.id
        LIMIT 1
    ) AS first_ready
), near AS MATERIALIZED (
    SELECT first_type.type_id, few_ready.row_address, few_ready.rank, few_ready.id, few_ready.place
    FROM (
        SELECT head.type_id
        FROM head
        ORDER BY head.rank, head.id
        LIMIT {reach}
    ) AS first_type
    CROSS JOIN LATERAL (
        SELECT
            ready.ctid AS row_address, ready.rank, ready.id,
            row_number() OVER (ORDER BY ready.rank, ready.id) AS place
        FROM {schema}.ready AS ready
        WHERE ready.type_id = first_type.type_id AND ready.rank >= $7::bigint
        ORDER BY ready.rank, ready.id
        LIMIT {few}
    ) AS few_ready
), bound AS MATERIALIZED (
    SELECT near.rank, near.id
    FROM near
    ORDER BY near.rank, near.id
    OFFSET {before_last}
    LIMIT 1
), far AS MATERIALIZED (
    SELECT more_ready.row_address, more_ready.rank, more_ready.id
    FROM near
    CROSS JOIN LATERAL (
        SELECT ready.ctid AS row_address, ready.rank, ready.id
        FROM {schema}.ready AS ready
        WHERE ready.type_id = near.type_id
            AND (ready.rank, ready.id) > (near.rank, near.id)
            AND (ready.rank, ready.id) <= {bound_or_greatest}
        ORDER BY ready.rank, ready.id
        LIMIT {rest}
    ) AS more_ready
    WHERE near.place = {few} AND (near.rank, near.id) < {bound_or_greatest}
), candidate AS MATERIALIZED (
    SELECT branch.row_address
    FROM (
        SELECT near.row_address, near.rank, near.id
        FROM near
        UNION ALL
        SELECT far.row_address, far.rank, far.id
        FROM far
    ) AS branch
    ORDER BY branch.rank, branch.id
    LIMIT {reach}
)
--: end
, taken AS (
    DELETE FROM {schema}.ready
    WHERE ctid = ANY (ARRAY(
--: if waits
        SELECT candidate.row_address
        FROM candidate
--: else
        SELECT locked.row_address
        FROM candidate
        CROSS JOIN LATERAL (
            SELECT ready.ctid AS row_address
            FROM {schema}.ready AS ready
            WHERE ready.ctid = candidate.row_address
            FOR UPDATE SKIP LOCKED
        ) AS locked
--: end
        WHERE $6::boolean OR coalesce((SELECT scheduled_at FROM next_later) > {clock}, true)
        LIMIT $2::bigint
    ))
    RETURNING *
), claimed AS MATERIALIZED (
    SELECT
        job.id, job.type_id, job.chain_id, job.chain_type_id, job.chain_index, job.input, job.priority, job.max_attempts,
        job.created_at, job.deduplication_key, job.trace_context, job.blockers,
        least(taken.attempt, 2147483646) + 1 AS attempt, least(taken.claims, 2147483646) + 1 AS claims,
        taken.scheduled_at, taken.rank, taken.type_id AS queue_type_id, taken.awaited, taken.settled_fence,
        job.keyed, job.chain_created_at
    FROM taken
    CROSS JOIN LATERAL (
        SELECT *
        FROM {schema}.job AS job
        WHERE job.id = taken.id
        OFFSET 0
    ) AS job
)
--: if weighs
, weighed AS MATERIALIZED (
    SELECT
        claimed.id, claimed.rank,
        octet_length(claimed.input)
            + CASE WHEN claimed.blockers > 0 THEN ($11::bigint[])[{type_place}] ELSE 0 END AS bytes
    FROM claimed
), weight AS MATERIALIZED (
    SELECT coalesce(sum(weighed.bytes), 0) <= $10::bigint AS fits
    FROM weighed
), beyond AS MATERIALIZED (
    SELECT summed.id
    FROM (
        SELECT
            weighed.id,
            row_number() OVER in_order AS place,
            sum(weighed.bytes) OVER in_order AS bytes
        FROM weighed
        WINDOW in_order AS (ORDER BY weighed.rank, weighed.id ROWS UNBOUNDED PRECEDING)
    ) AS summed
    WHERE NOT (SELECT fits FROM weight) AND summed.place > $9::bigint AND summed.bytes > $10::bigint
), put_back AS (
    INSERT INTO {schema}.ready
    SELECT taken.*
    FROM taken
    WHERE NOT (SELECT fits FROM weight) AND taken.id IN (SELECT beyond.id FROM beyond)
)
--: end
, new_running AS (
    INSERT INTO {schema}.running (
        id, leased_until, scheduled_at, started_at, type_id, attempt, claims, priority, awaited, fence, owner,
        settled_fence, keyed, chain_type_id, chain_created_at, rank
    )
    SELECT
        claimed.id,
        {clock} + least(($3::bigint[])[{type_place}], 9223372036854775807 - {clock}),
        claimed.scheduled_at, {clock}, claimed.queue_type_id, claimed.attempt, claimed.claims, claimed.priority,
        claimed.awaited, $5::uuid, $4::text, claimed.settled_fence, claimed.keyed, claimed.chain_type_id,
        claimed.chain_created_at, CASE WHEN claimed.claims > 1 THEN claimed.rank END
    FROM claimed
--: if weighs
    WHERE (SELECT fits FROM weight) OR claimed.id NOT IN (SELECT beyond.id FROM beyond)
--: end
)
-- Jobs that were not claimed before have no failure.
SELECT
    claimed.id, claimed.type_id, claimed.chain_id, claimed.chain_type_id, claimed.chain_index, claimed.input,
    claimed.priority, claimed.max_attempts, claimed.created_at, claimed.deduplication_key, claimed.trace_context,
    claimed.blockers, claimed.attempt, claimed.claims, claimed.scheduled_at, claimed.rank, claimed.queue_type_id,
    NULL::integer AS failure_attempt, NULL::bigint AS failure_at, NULL::text AS failure_message,
    NULL::bigint AS now, NULL::bigint AS next_later, NULL::bigint AS rows_seen, NULL::bigint AS ready_entries,
    NULL::bigint AS later_entries, NULL::uuid[] AS rows_without_job, NULL::bigint AS put_back
FROM claimed
WHERE claimed.claims <= 1
--: if weighs
    AND ((SELECT fits FROM weight) OR claimed.id NOT IN (SELECT beyond.id FROM beyond))
--: end
UNION ALL
SELECT
    claimed.id, claimed.type_id, claimed.chain_id, claimed.chain_type_id, claimed.chain_index, claimed.input,
    claimed.priority, claimed.max_attempts, claimed.created_at, claimed.deduplication_key, claimed.trace_context,
    claimed.blockers, claimed.attempt, claimed.claims, claimed.scheduled_at, claimed.rank, claimed.queue_type_id,
    failure.attempt, failure.at, failure.message,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM claimed
LEFT JOIN LATERAL (
    SELECT *
    FROM {schema}.failure AS failure
    WHERE failure.id = claimed.id
    OFFSET 0
) AS failure
    ON true
WHERE claimed.claims > 1
--: if weighs
    AND ((SELECT fits FROM weight) OR claimed.id NOT IN (SELECT beyond.id FROM beyond))
--: end
UNION ALL
SELECT
    NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL,
    clock.now,
    next_later.scheduled_at,
    CASE WHEN (SELECT count(*) FROM taken) < $2::bigint THEN (SELECT count(*) FROM candidate) END,
    (SELECT pg_stat_get_xact_tuples_returned(E'{schema_text}.ready_claim'::regclass)) - clock.ready_entries
--: if few_types
    ,
--: else
    -- Entries of jobs that were looked at are not dead.
    - (SELECT count(*) FROM head) - (SELECT count(*) FROM near) - (SELECT count(*) FROM far),
--: end
    (SELECT pg_stat_get_xact_tuples_returned(E'{schema_text}.later_due'::regclass)) - clock.later_entries,
    CASE
        WHEN (SELECT count(*) FROM taken) > (SELECT count(*) FROM claimed)
        THEN ARRAY(SELECT taken.id FROM taken WHERE taken.id NOT IN (SELECT claimed.id FROM claimed))
    END,
--: if weighs
    (SELECT count(*) FROM beyond)
--: else
    0
--: end
FROM clock
CROSS JOIN next_later
