-- The storage of queuert in Postgres, in one schema.
--
-- The table that holds a job's row says in which state the job is. `job` and `result` hold facts: their rows are written
-- once and never changed. The narrow tables between them hold the open jobs: `waiting` (blocked), `later` and `ready`
-- (pending) and `running`. `stopped` holds the dead and the cancelled jobs. Every job has a row in `job`, and one row in
-- exactly one of the six tables `waiting`, `later`, `ready`, `running`, `stopped` and `result`.
--
-- The narrow tables exist because Postgres writes a new version of a row for every change: to move a job from `ready` to
-- `running` writes a hundred bytes and does not copy its input, and vacuum has small tables to clean.
--
-- The row of a chain's latest job in one of the six tables is the lock of the chain: a transaction that changes a chain
-- locks, changes or moves that row. A claim or an end therefore locks only the row that it moves anyway.
--
-- Times are microseconds since 1970, by the clock of this server. There are no foreign keys: each of them would cost a
-- trigger and a row lock for every row. The maintainer checks the references instead, and reports broken ones.
--
-- Columns are ordered by alignment, the wide ones first, so that Postgres stores them without padding; columns that may be
-- null come last.

-- The names of job types, with the numbers that the other tables have in their place. The number is derived from the name
-- (the first four bytes of its SHA-256), so that all processes and all copies of a database use the same one.
CREATE TABLE {schema}.job_type (
    id integer NOT NULL PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

-- Every job, as it was created. The row is deleted with its chain and never changed.
CREATE TABLE {schema}.job (
    created_at bigint NOT NULL,
    -- The time and the type of the chain, copied from its first job.
    chain_created_at bigint NOT NULL,
    -- The place of the job in its chain, from zero.
    chain_index integer NOT NULL,
    type_id integer NOT NULL,
    chain_type_id integer NOT NULL,
    -- How many chains the job was created to wait for, repetitions counted.
    blockers integer NOT NULL,
    priority smallint NOT NULL,
    -- Whether the chain was started with a deduplication key. The end of such a chain frees the key in `open_key`.
    keyed boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    -- The id of the chain, which is the id of its first job.
    chain_id uuid NOT NULL,
    input text NOT NULL,
    -- Null: there is no limit.
    max_attempts bigint,
    -- The deduplication key of the chain, in first jobs only.
    deduplication_key text COLLATE "C",
    trace_context text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05);

-- Finds the jobs of a chain, the latest first, and makes sure that a job has one successor. The primary key finds first
-- jobs, because they have the id of their chain. So a chain of one step pays for one index less.
CREATE UNIQUE INDEX job_chain ON {schema}.job (chain_id, chain_index) WHERE chain_index > 0;

-- Lists of jobs and chains by time of creation, type by type; a list over all types merges one run per type. First jobs
-- have an index of their own, so that a list of chains does not read the jobs that continue them. The id is included
-- because all jobs of a batch have the same time.
CREATE INDEX job_first ON {schema}.job (type_id, created_at, id) WHERE chain_index = 0;

CREATE INDEX job_next ON {schema}.job (type_id, created_at, id) WHERE chain_index > 0;

-- All chains that were ever started with a key, for deduplication over a period of time.
CREATE INDEX job_key ON {schema}.job (type_id, deduplication_key, created_at) WHERE deduplication_key IS NOT NULL;

-- Pending jobs that are due. Claims delete from here, so the table has many dead rows and few live ones: vacuum comes after
-- every 5000 changes and does not pause. It keeps the file at its length, because to cut it would lock out the claims.
CREATE TABLE {schema}.ready (
    -- The order of claiming: scheduled time minus priority times the ageing step.
    rank bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    type_id integer NOT NULL,
    -- The number of attempts that have begun. An attempt that is given back does not count.
    attempt integer NOT NULL,
    -- How often the job was claimed, whatever became of it.
    claims integer NOT NULL,
    priority smallint NOT NULL,
    -- Whether some job has this chain as blocker. Only then does the end of the chain look for such jobs.
    awaited boolean NOT NULL,
    id uuid NOT NULL,
    -- When the first attempt began. Null: there was none.
    started_at bigint,
    -- The fence under which an attempt last ended. An end that arrives again under this fence is a repetition; under any
    -- other fence it comes from an attempt that has lost the job.
    settled_fence uuid
) WITH (
    vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000
);

-- A claim reads one ordered run of this index per type.
CREATE INDEX ready_claim ON {schema}.ready (type_id, rank, id);

CREATE UNIQUE INDEX ready_id ON {schema}.ready (id);

-- Pending jobs that are due later, apart from `ready` so that claims do not read past them. A claim moves jobs over once
-- they are due. The columns mean the same as in `ready`.
CREATE TABLE {schema}.later (
    scheduled_at bigint NOT NULL,
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    started_at bigint,
    settled_fence uuid,
    -- The rank of a job that was taken back from a process that died: the job keeps its place in the queue although its
    -- backoff makes it due later. Null for almost all jobs: the rank follows from the scheduled time.
    rank bigint
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1
);

-- Finds the jobs of a type that have become due, and the time of the next one.
CREATE INDEX later_due ON {schema}.later (type_id, scheduled_at);

-- Blocked jobs. The columns mean the same as in `ready`.
CREATE TABLE {schema}.waiting (
    scheduled_at bigint NOT NULL,
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    -- The number of this job's rows in `blocker` whose chains have not completed. The transaction that completes the last
    -- of these chains moves the job to `ready` or `later`.
    remaining integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    started_at bigint,
    settled_fence uuid
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1
);

-- Running jobs, with their leases. There is no index over `leased_until`: every renewal would have to write it. The table
-- holds only the jobs in flight, so a sweep for expired leases reads little. A tenth of each page stays free, so that
-- the new row of a renewal fits next to the old one.
CREATE TABLE {schema}.running (
    leased_until bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    started_at bigint NOT NULL,
    -- This column, `chain_type_id` and `keyed` are copied from `job` by the claim, which reads that row anyway, so that the
    -- end of the job does not have to.
    chain_created_at bigint NOT NULL,
    type_id integer NOT NULL,
    chain_type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    keyed boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    -- Chosen anew by every claim. Only the attempt that knows it may renew the lease or end the job.
    fence uuid NOT NULL,
    -- The id of the workers that have the job.
    owner text NOT NULL,
    settled_fence uuid,
    -- The rank with which the job was claimed, if it was claimed before; see `later`.
    rank bigint
) WITH (
    fillfactor = 90, vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000
);

-- Completed jobs. The row is deleted with its chain and never changed.
CREATE TABLE {schema}.result (
    ended_at bigint NOT NULL,
    -- Copied from `job`, for the index below.
    chain_created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    -- Not at the end, although it may be null: anywhere else it would be padded.
    started_at bigint,
    chain_type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    -- Whether the chain completed with this job. Otherwise the job was continued.
    final boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    settled_fence uuid,
    completed_by text,
    output text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05);

-- Completed chains, for lists and for retention.
CREATE INDEX result_chain ON {schema}.result (chain_type_id, chain_created_at) WHERE final;

-- Dead and cancelled jobs, until they are retried or deleted.
CREATE TABLE {schema}.stopped (
    ended_at bigint NOT NULL,
    -- Copied from `job`, for the index below.
    chain_created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    chain_type_id integer NOT NULL,
    -- The type of the queue that the job was in. A retry puts the job back into that queue. If the type in `job` is another
    -- one, that row is damaged.
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    -- 4: dead, 5: cancelled.
    status smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    started_at bigint,
    settled_fence uuid
);

-- Dead and cancelled chains, for lists and for retention.
CREATE INDEX stopped_chain ON {schema}.stopped (status, chain_type_id, chain_created_at);

-- The latest failure of each job that has failed. Readers do not show it if the job has completed since.
CREATE TABLE {schema}.failure (
    at bigint NOT NULL,
    attempt integer NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    message text NOT NULL
);

-- One row for every chain that a job waits for or has waited for. The rows that name a chain as blocker are deleted with
-- that chain.
CREATE TABLE {schema}.blocker (
    -- The place of the blocker among those of the job, from zero.
    position integer NOT NULL,
    job_id uuid NOT NULL,
    chain_id uuid NOT NULL,
    -- Whether the end of this chain made the job pending, because it was the last one that the job waited for. Written in
    -- the transaction that ended the chain: if its answer was lost and the end is asked for again, the answer must name the
    -- same unblocked jobs.
    ended_last boolean NOT NULL DEFAULT false,
    PRIMARY KEY (job_id, position)
);

-- Finds the jobs that wait for a chain.
CREATE INDEX blocker_chain ON {schema}.blocker (chain_id, job_id);

-- The open chains that were started with a deduplication key. The row is deleted when the chain ends.
CREATE TABLE {schema}.open_key (
    created_at bigint NOT NULL,
    type_id integer NOT NULL,
    chain_id uuid NOT NULL PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    -- A starter may exclude open chains by id, for example the chain that starts its own successor. A chain that is started
    -- while an excluded one has the key is open beside that one.
    beside boolean NOT NULL DEFAULT false
);

-- A key has one open chain, apart from the chains beside it.
CREATE UNIQUE INDEX open_key_key ON {schema}.open_key (type_id, key) WHERE NOT beside;

CREATE INDEX open_key_beside ON {schema}.open_key (type_id, key, created_at) WHERE beside;

-- Makes starters of the same key wait for each other: each starter locks the row of its key before it looks for open chains.
-- A tenth of each page stays free for the new rows of the changes below.
CREATE TABLE {schema}.key_lock (
    type_id integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- The chain that was last opened with the key, by a start or a retry. No statement reads it. Its change makes a new row:
    -- a transaction with one snapshot for its whole life (REPEATABLE READ, SERIALIZABLE) cannot lock a row that has changed
    -- since the snapshot, and so learns that there is a chain which it does not see.
    chain_id uuid,
    PRIMARY KEY (type_id, key)
) WITH (fillfactor = 90);

-- The job types that operators have paused: workers claim no jobs of them. By name, because a type can be paused before it
-- has a number. A row whose end has passed counts as absent.
CREATE TABLE {schema}.pause (
    since bigint NOT NULL,
    type_name text COLLATE "C" NOT NULL PRIMARY KEY,
    -- Null: until the type is resumed.
    until bigint,
    reason text,
    author text
);

-- The process that does the upkeep: one row, which another process may take when the lease is over. The maintainer has this
-- row locked in every transaction that changes rows of others, so two processes never do it at once, whatever their
-- clocks and pauses. Other processes skip a locked row, so none of them waits. An advisory lock would not do: behind a
-- pooler it may end up with another client.
CREATE TABLE {schema}.maintainer (
    leased_until bigint NOT NULL,
    -- When all rows were last checked.
    checked_at bigint NOT NULL,
    single boolean NOT NULL PRIMARY KEY CHECK (single),
    -- The id of the workers that do the upkeep.
    owner text NOT NULL
);

-- A new store has no rows to check.
INSERT INTO {schema}.maintainer (leased_until, checked_at, single, owner)
VALUES (0, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, true, '');

-- The processes with their workers, so that the jobs of a process that has died can be taken back before their leases
-- expire. A session of a process holds the advisory lock `key` (shared) for as long as the process lives. A process writes
-- its row when it first claims jobs and when another of its sessions has taken the lock.
--
-- The table is unlogged on purpose: a crash of the server ends all sessions and empties this table, and so does a failover.
-- A process that has not come back yet is then not taken for dead.
CREATE UNLOGGED TABLE {schema}.process (
    key bigint NOT NULL PRIMARY KEY,
    -- Rows from before the last start of the server are ignored.
    registered_at bigint NOT NULL,
    workers text[] NOT NULL,
    -- When the process last renewed leases or otherwise reported that it lives. A process that has lost its session lock,
    -- and gets no other session because the server has none left, is not taken for dead as long as this changes. Zero:
    -- never.
    renewed_at bigint NOT NULL DEFAULT 0
);

-- The functions below end jobs. Both look rows up one by one, whatever the server believes that the tables hold: a plan that
-- was made when the tables looked empty would compare all rows with all others. Both find everything that they write in the
-- row of `running` that they delete.
--
-- In the transaction of an attempt, the row of the job is locked from the end of the job on, so no other process could take
-- the job when its lease is over. The attempt has nothing left to do but to commit. If its process is frozen or vanishes
-- first, the server ends the session: once it is idle in this transaction for as long as the lease had left, or for five
-- seconds if that is longer, or for the time that the session had as its limit if that is shorter.

-- Finishes a chain that no job waits for, and returns whether it has. It does nothing if the job does not run under the
-- fence, or if some job waits for its chain. It is only called in the transaction of an attempt.
CREATE FUNCTION {schema}.finish_one(the_job uuid, the_fence uuid, the_worker text, the_output text) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off' SET jit = 'off'
AS {body}
BEGIN
    WITH ended AS (
        DELETE FROM {schema}.running AS running
        WHERE running.id = the_job AND running.fence = the_fence AND NOT running.awaited
        RETURNING running.*
    ), freed_key AS (
        DELETE FROM {schema}.open_key AS open_key
        WHERE open_key.chain_id = ANY (ARRAY(
            SELECT job.chain_id
            FROM ended
            JOIN {schema}.job AS job
                ON job.id = ended.id
            WHERE ended.keyed AND job.keyed
        ))
    )
    INSERT INTO {schema}.result (
        id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final, started_at, settled_fence,
        completed_by, output
    )
    SELECT
        ended.id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, ended.chain_created_at, ended.scheduled_at,
        ended.chain_type_id, ended.attempt, ended.claims, true, ended.started_at, the_fence, the_worker, the_output
    FROM ended
    WHERE set_config(
        'idle_in_transaction_session_timeout',
        least(
            greatest((ended.leased_until - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) / 1000, 5000),
            2147483647,
            nullif(
                (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0
            )
        )::text,
        true
    ) IS NOT NULL;
    RETURN FOUND;
END
{body};

-- Finishes chains, whether or not jobs wait for them, and makes the jobs pending that wait for nothing else. Each job is
-- given once. A lock that another transaction has is waited for, for as long as `the_patience` says (null: without limit);
-- then the whole call fails. Returns one row per chain that was finished, with whether some job had it as blocker, and one
-- row per job that was unblocked, with one of the jobs whose end unblocked it. `blocker.ended_last` notes that end.
CREATE FUNCTION {schema}.finish_many(
    the_jobs uuid[], the_fences uuid[], the_workers text[], the_outputs text[], the_step bigint, the_patience text
)
RETURNS TABLE (finished uuid, was_awaited boolean, unblocked uuid, unblocked_chain uuid, unblocked_type integer)
LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off' SET jit = 'off'
AS {body}
DECLARE
    -- The given jobs that run under their fences.
    own_jobs uuid[];
    own_fences uuid[];
    own_workers text[];
    own_outputs text[];
    -- Those of them whose chains some job waits for, and these chains.
    awaited_jobs uuid[];
    awaited_chains uuid[];
    -- The jobs that may wait for these chains, each with the number of its edges to them, and with one of the jobs that end
    -- them and its chain.
    dependants uuid[];
    dependant_edges integer[];
    causes uuid[];
    cause_chains uuid[];
    locked_rows bigint;
    -- The earliest end of their leases.
    lease_end bigint;
BEGIN
    IF the_patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', the_patience, true);
    END IF;

    -- Locks the chains. From here on no other transaction can create a job that waits for one of them.
    SELECT
        array_agg(locked.id), array_agg(given.fence), array_agg(given.worker), array_agg(given.output),
        array_agg(locked.id) FILTER (WHERE locked.awaited),
        array_agg(job.chain_id) FILTER (WHERE locked.awaited),
        min(locked.leased_until)
    INTO own_jobs, own_fences, own_workers, own_outputs, awaited_jobs, awaited_chains, lease_end
    FROM unnest(the_jobs, the_fences, the_workers, the_outputs) AS given(id, fence, worker, output)
    CROSS JOIN LATERAL (
        SELECT running.id, running.awaited, running.leased_until
        FROM {schema}.running AS running
        WHERE running.id = given.id AND running.fence = given.fence
        FOR UPDATE
    ) AS locked
    CROSS JOIN LATERAL (
        SELECT job.chain_id
        FROM {schema}.job AS job
        WHERE job.id = locked.id
        OFFSET 0
    ) AS job;

    -- In the transaction of an attempt.
    IF the_patience IS NULL AND lease_end IS NOT NULL THEN
        PERFORM set_config(
            'idle_in_transaction_session_timeout',
            least(
                greatest((lease_end - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) / 1000, 5000),
                2147483647,
                nullif(
                    (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint,
                    0
                )
            )::text,
            true
        );
    END IF;

    -- A separate statement after the locks were granted: its snapshot has all jobs that waited before.
    IF awaited_chains IS NOT NULL THEN
        SELECT
            array_agg(dependant.id), array_agg(dependant.edges), array_agg(dependant.cause),
            array_agg(dependant.cause_chain)
        INTO dependants, dependant_edges, causes, cause_chains
        FROM (
            SELECT
                blocker.job_id AS id,
                count(*)::integer AS edges,
                (array_agg(awaited.job_id))[1] AS cause,
                (array_agg(awaited.chain_id))[1] AS cause_chain
            FROM unnest(awaited_jobs, awaited_chains) AS awaited(job_id, chain_id)
            CROSS JOIN LATERAL (
                SELECT blocker.job_id
                FROM {schema}.blocker AS blocker
                WHERE blocker.chain_id = awaited.chain_id
                OFFSET 0
            ) AS blocker
            GROUP BY blocker.job_id
        ) AS dependant;
        LOOP
            SELECT count(*)
            INTO locked_rows
            FROM (
                SELECT waiting.id
                FROM {schema}.waiting AS waiting
                WHERE waiting.id = ANY (dependants)
                ORDER BY waiting.id
                FOR UPDATE
            ) AS locked;
            -- Another transaction may have deleted a row while this one waited for its lock. Either the job waits no more,
            -- or it has a new row, which must be locked too.
            EXIT WHEN locked_rows = (
                SELECT count(*)
                FROM {schema}.waiting AS waiting
                WHERE waiting.id = ANY (dependants)
            );
        END LOOP;
    END IF;

    -- Again a separate statement: its snapshot has the changes that other transactions made to `remaining`.
    RETURN QUERY
    WITH clock AS MATERIALIZED (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
    ), ended AS (
        DELETE FROM {schema}.running AS running
        USING unnest(own_jobs, own_fences, own_workers, own_outputs) AS own(id, fence, worker, output)
        WHERE running.id = ANY (ARRAY[own.id])
        RETURNING
            running.id, running.scheduled_at, running.started_at, running.attempt, running.claims, running.awaited,
            running.keyed, running.chain_type_id, running.chain_created_at, own.fence, own.worker, own.output
    ), new_result AS (
        INSERT INTO {schema}.result (
            id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final, started_at,
            settled_fence, completed_by, output
        )
        SELECT
            ended.id, clock.now, ended.chain_created_at, ended.scheduled_at, ended.chain_type_id, ended.attempt,
            ended.claims, true, ended.started_at, ended.fence, ended.worker, ended.output
        FROM ended
        CROSS JOIN clock
    ), freed_key AS (
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
        ))
    ), still_blocked AS (
        UPDATE {schema}.waiting AS waiting
        SET remaining = waiting.remaining - taken.edges
        FROM unnest(dependants, dependant_edges) AS taken(id, edges)
        WHERE waiting.id = ANY (ARRAY[taken.id]) AND waiting.remaining > taken.edges
    ), free AS (
        DELETE FROM {schema}.waiting AS waiting
        USING unnest(dependants, dependant_edges, causes, cause_chains) AS taken(id, edges, cause, cause_chain)
        WHERE waiting.id = ANY (ARRAY[taken.id]) AND waiting.remaining <= taken.edges
        RETURNING waiting.*, taken.cause, taken.cause_chain
    ), noted AS (
        UPDATE {schema}.blocker AS blocker
        SET ended_last = true
        FROM free
        WHERE blocker.chain_id = ANY (ARRAY[free.cause_chain]) AND blocker.job_id = ANY (ARRAY[free.id])
    ), new_later AS (
        INSERT INTO {schema}.later (
            id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
        )
        SELECT
            free.id, free.scheduled_at, free.type_id, free.attempt, free.claims, free.priority, free.awaited,
            free.started_at, free.settled_fence
        FROM free
        CROSS JOIN clock
        WHERE free.scheduled_at > clock.now
    ), new_ready AS (
        INSERT INTO {schema}.ready (
            id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
        )
        SELECT
            free.id, clock.now - free.priority * the_step, clock.now, free.type_id, free.attempt, free.claims,
            free.priority, free.awaited, free.started_at, free.settled_fence
        FROM free
        CROSS JOIN clock
        WHERE free.scheduled_at <= clock.now
    )
    SELECT ended.id, ended.awaited, NULL::uuid, NULL::uuid, NULL::integer
    FROM ended
    UNION ALL
    SELECT free.cause, true, free.id, job.chain_id, free.type_id
    FROM free
    CROSS JOIN LATERAL (
        SELECT job.chain_id
        FROM {schema}.job AS job
        WHERE job.id = free.id
        OFFSET 0
    ) AS job;
END
{body};
