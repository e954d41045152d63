-- Ends attempts, a whole batch at once: those that touch no other chain than their own.
--
-- Parameters: those that `settle.rs` lists for the sections that are used, bound in that order. All but `worker`, `step` and
-- the known types are arrays with an element per item. What no item needs is left out: the server reads, takes apart and
-- keeps each element of each array.
-- Sections: `finishes`, `continues`, `gives_back` (retry, release, snooze), `buries`, `hands_over` (the next job runs at once
-- under a new fence). `mixed`: items say of which kind they are (0 finish, 1 continue, 2 retry, 3 bury, 4 release, 5 snooze).
-- Answer: one row: the jobs that were settled, the time, and whether the database has the types of the next jobs; if not,
-- nothing was done. A row for each job would cost the server and the process more than all else in the answer.
-- Locks: the rows of `running`. What becomes of a row that another transaction has locked: `waits` waits for it (in the
-- caller's transaction, and an error if that has ended), `skips` leaves the item out, `fails` fails the whole statement
-- after `lock_timeout`. The last one is the usual way: hardly ever does another transaction have a lock, and to find out by
-- locking each row costs as much as deleting it.
-- Reasons:
-- * The end of an awaited chain is not written in here: the mark is on the row that is deleted, so it cannot be missed.
-- * Everything hangs on what the deletion returns, but for next jobs. They are written before the old rows are deleted, so
--   that an id that is taken refuses the item and no error spoils the transaction; for this the old rows are locked first.
--   A statement that may fail does so if an id is taken, and next jobs come after the deletion, too: a lock for each, and
--   keeping all that is given twice more, would cost half as much as all the rest.
-- * Every step in between keeps its rows, outputs and all, so there are as few of them as possible.
-- * Rows are looked up one by one, whatever the server believes that the tables hold, which is what `ANY` and `OFFSET 0` are
--   for: a plan that was made when `running` looked empty would compare all with all.
WITH clock AS MATERIALIZED (
    SELECT
        {now} AS now,
--: if fails
        set_config('lock_timeout', '{lock_timeout}', true) AS limits,
--: end
--: if skips
        '' AS limits,
--: end
--: if waits
        CASE
            WHEN {in_transaction} THEN (
                SELECT CASE WHEN count(*) > 0 THEN {limit_idle_time:min(running.leased_until)} ELSE '' END
                FROM unnest({jobs}) AS asked(id)
                CROSS JOIN LATERAL (
                    SELECT running.leased_until
                    FROM {schema}.running AS running
                    WHERE running.id = asked.id
                    OFFSET 0
                ) AS running
            )
            ELSE {transaction_ended}::text
        END AS limits,
--: end
--: if continues
        {types_exist:{known_type_ids}, {known_type_names}} AS types_exist
--: else
        true AS types_exist
--: end
)
--: if locks_first
, locked AS MATERIALIZED (
    SELECT item.*
    FROM unnest({item_arrays}) AS item({item_columns})
    CROSS JOIN LATERAL (
        SELECT 1
        FROM {schema}.running AS running
        WHERE {item_may_settle}
        FOR UPDATE
--: if skips
        SKIP LOCKED
--: end
    ) AS held
    WHERE (SELECT types_exist FROM clock)
)
--: end
--: if continues_before_deletion
, next_job AS (
    {insert_next_jobs:locked}
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
-- By itself, and not as a condition of the deletion: that is checked again for a row that another transaction has just
-- changed, apart from the rest of the statement.
, accepted AS MATERIALIZED (
    SELECT item.*
    FROM locked AS item
    WHERE item.next_id IN (SELECT next_job.id FROM next_job)
--: if mixed
        OR item.kind <> 1
--: end
)
--: end
, ended AS (
    DELETE FROM {schema}.running AS running
--: if continues_before_deletion
    USING accepted AS item
--: else
--: if locks_first
    USING locked AS item
--: else
    USING unnest({item_arrays}) AS item({item_columns})
--: end
--: end
    WHERE {item_may_settle}
        -- Checked before any row is read, so that the limits are in force by then.
        AND (SELECT types_exist AND limits IS NOT NULL FROM clock)
    RETURNING
        running.id, running.scheduled_at, running.started_at, running.type_id, running.attempt, running.claims,
        running.priority, running.awaited, running.keyed, running.chain_type_id, running.chain_created_at,
--: if gives_back
        running.rank,
--: end
--: if has_times
        CASE
            WHEN item.at IS NOT NULL THEN greatest(item.at, {clock})
            WHEN item.delay > 9223372036854775807 - {clock} THEN 9223372036854775807
            ELSE {clock} + item.delay
        END AS next_at,
--: end
        {returned_item_columns}
)
--: if continues_after_deletion
, next_job AS (
    {insert_next_jobs:ended}
)
--: end
--: if completes
, new_result AS (
    INSERT INTO {schema}.result (
        id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final, started_at, settled_fence,
        completed_by, output
    )
    SELECT
        ended.id, {clock}, ended.chain_created_at, ended.scheduled_at, ended.chain_type_id, ended.attempt, ended.claims,
--: if mixed
        ended.kind = 0,
--: else
--: if finishes
        true,
--: else
        false,
--: end
--: end
        ended.started_at, ended.fence, {worker_of_ended},
--: if finishes
        ended.text
--: else
        NULL
--: end
    FROM ended
--: if mixed
    WHERE ended.kind IN (0, 1)
--: end
)
--: end
--: if hands_over
, next_running AS (
    INSERT INTO {schema}.running (
        id, leased_until, scheduled_at, started_at, type_id, attempt, claims, priority, awaited, fence, owner, keyed,
        chain_type_id, chain_created_at
    )
    SELECT
        ended.next_id, {clock} + least(ended.next_lease, 9223372036854775807 - {clock}), ended.next_at, {clock},
        ended.next_type, 1, 1, ended.next_priority, ended.awaited, ended.next_fence, {worker_of_ended}, ended.keyed,
        ended.chain_type_id, ended.chain_created_at
    FROM ended
    WHERE ended.next_fence IS NOT NULL
--: if mixed
        AND ended.kind = 1
--: end
)
--: end
--: if continues
, next_later AS (
    INSERT INTO {schema}.later (
        id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    )
    SELECT
        ended.next_id, ended.next_at, ended.next_type, 0, 0, ended.next_priority, ended.awaited, NULL::bigint, NULL::uuid
    FROM ended
    WHERE ended.next_at > {clock}
--: if mixed
        AND ended.kind = 1
--: end
--: if hands_over
        AND ended.next_fence IS NULL
--: end
)
, next_ready AS (
    INSERT INTO {schema}.ready (
        id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence, rank
    )
    SELECT
        ended.next_id, ended.next_at, ended.next_type, 0, 0, ended.next_priority, ended.awaited, NULL::bigint, NULL::uuid,
        ended.next_at - ended.next_priority * {step}
    FROM ended
    WHERE ended.next_at <= {clock}
--: if mixed
        AND ended.kind = 1
--: end
--: if hands_over
        AND ended.next_fence IS NULL
--: end
)
--: end
--: if gives_back
-- A released job keeps its place in the queue.
, back_later AS (
    INSERT INTO {schema}.later (
        id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    )
    SELECT
        ended.id, {back_at}, ended.type_id, {back_attempt}, ended.claims, ended.priority, ended.awaited, ended.started_at,
        ended.fence
    FROM ended
    WHERE ended.kind IN (2, 4, 5) AND {back_at} > {clock}
)
, back_ready AS (
    INSERT INTO {schema}.ready (
        id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence, rank
    )
    SELECT
        ended.id, {back_at}, ended.type_id, {back_attempt}, ended.claims, ended.priority, ended.awaited, ended.started_at,
        ended.fence,
        CASE
            WHEN ended.kind = 4 THEN coalesce(ended.rank, ended.scheduled_at - ended.priority * {step})
            ELSE ended.next_at - ended.priority * {step}
        END
    FROM ended
    WHERE ended.kind IN (2, 4, 5) AND {back_at} <= {clock}
)
--: end
--: if buries
, new_stopped AS (
    INSERT INTO {schema}.stopped (
        id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, status, awaited, started_at,
        settled_fence, type_id
    )
    SELECT
        ended.id, {clock}, ended.chain_created_at, ended.scheduled_at, ended.chain_type_id, ended.attempt, ended.claims, 4,
        ended.awaited, ended.started_at, ended.fence, ended.type_id
    FROM ended
    WHERE ended.kind = 3
)
--: end
--: if fails_attempts
, new_failure AS (
    INSERT INTO {schema}.failure (id, attempt, at, message)
    SELECT ended.id, ended.attempt, {clock}, ended.text
    FROM ended
    WHERE ended.kind IN (2, 3)
    ON CONFLICT (id) DO UPDATE
    SET attempt = excluded.attempt, at = excluded.at, message = excluded.message
)
--: end
--: if ends_chains
, freed_key AS (
    DELETE FROM {schema}.open_key AS open_key
    WHERE open_key.chain_id = ANY (ARRAY(
        SELECT job.chain_id
        FROM ended
        CROSS JOIN LATERAL (
            SELECT job.chain_id, job.keyed
            FROM {schema}.job AS job
            WHERE job.id = ended.id
            OFFSET 0
        ) AS job
        WHERE ended.keyed AND job.keyed
--: if mixed
            AND ended.kind IN (0, 3)
--: end
    ))
)
--: end
SELECT
    ARRAY(SELECT ended.id FROM ended) AS settled,
    clock.now,
    clock.types_exist
FROM clock
