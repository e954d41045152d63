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
-- expire. The lifeline of a process is a session that holds the advisory lock `key` (shared) for as long as the process
-- lives. A process writes its row when it first claims jobs and when it has made a new lifeline.
--
-- The table is unlogged on purpose: a crash of the server ends all sessions and empties this table, and so does a failover.
-- A process that has not come back yet is then not taken for dead.
CREATE UNLOGGED TABLE {schema}.process (
    key bigint NOT NULL PRIMARY KEY,
    -- Rows from before the last start of the server are ignored.
    registered_at bigint NOT NULL,
    workers text[] NOT NULL,
    -- When the process last renewed leases or otherwise reported that it lives. A process that has lost its lifeline, and
    -- gets no other session because the server has none left, is not taken for dead as long as this changes. Zero: never.
    renewed_at bigint NOT NULL DEFAULT 0
);

-- The functions below end jobs. Both look rows up one by one, whatever the server believes the tables hold: a plan that was
-- made when the tables looked empty would compare all rows with all others. Both find everything that they write in the row
-- of `running` that they delete.
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
    WITH gone AS (
        DELETE FROM {schema}.running AS r WHERE r.id = the_job AND r.fence = the_fence AND NOT r.awaited
        RETURNING r.*
    ), key AS (
        DELETE FROM {schema}.open_key AS k WHERE k.chain_id = ANY (ARRAY(
            SELECT j.chain_id FROM gone AS g JOIN {schema}.job AS j ON j.id = g.id WHERE g.keyed AND j.keyed
        ))
    )
    INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final,
        started_at, settled_fence, completed_by, output)
    SELECT g.id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, g.chain_created_at, g.scheduled_at,
        g.chain_type_id, g.attempt, g.claims, true, g.started_at, the_fence, the_worker, the_output
    FROM gone AS g
    WHERE set_config('idle_in_transaction_session_timeout', least(greatest((g.leased_until
        - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) / 1000, 5000), 2147483647,
        nullif((extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0)
        )::text, true) IS NOT NULL;
    RETURN FOUND;
END
{body};

-- Finishes chains, whether or not jobs wait for them, and makes the jobs pending that wait for nothing else. Each job is
-- given once. A lock that another transaction has is waited for, for as long as `the_patience` says (null: without limit);
-- then the whole call fails. Returns one row per chain that was finished, with whether some job had it as blocker, and one
-- row per job that was unblocked, with one of the jobs whose end unblocked it. `blocker.ended_last` notes that end.
CREATE FUNCTION {schema}.finish_many(the_jobs uuid[], the_fences uuid[], the_workers text[], the_outputs text[],
    the_step bigint, the_patience text)
RETURNS TABLE (finished uuid, was_awaited boolean, unblocked uuid, unblocked_chain uuid, unblocked_type integer)
LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off' SET jit = 'off'
AS {body}
DECLARE
    -- The given jobs that run under their fences.
    jobs uuid[];
    fences uuid[];
    workers text[];
    outputs text[];
    -- Those of them whose chains some job waits for, and these chains.
    enders uuid[];
    chains uuid[];
    -- The jobs that may wait for these chains, each with the number of its edges to them, and with one of the jobs that end
    -- them and its chain.
    dependants uuid[];
    edges integer[];
    causes uuid[];
    cause_chains uuid[];
    held bigint;
    -- The earliest end of their leases.
    until bigint;
BEGIN
    IF the_patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', the_patience, true);
    END IF;

    -- Locks the chains. From here on no other transaction can create a job that waits for one of them.
    SELECT array_agg(x.id), array_agg(u.fence), array_agg(u.worker), array_agg(u.output),
        array_agg(x.id) FILTER (WHERE x.awaited), array_agg(j.chain_id) FILTER (WHERE x.awaited), min(x.leased_until)
    INTO jobs, fences, workers, outputs, enders, chains, until
    FROM unnest(the_jobs, the_fences, the_workers, the_outputs) AS u(id, fence, worker, output)
    CROSS JOIN LATERAL (
        SELECT r.id, r.awaited, r.leased_until FROM {schema}.running AS r
        WHERE r.id = u.id AND r.fence = u.fence FOR UPDATE
    ) AS x
    CROSS JOIN LATERAL (SELECT j.chain_id FROM {schema}.job AS j WHERE j.id = x.id OFFSET 0) AS j;

    -- In the transaction of an attempt.
    IF the_patience IS NULL AND until IS NOT NULL THEN
        PERFORM set_config('idle_in_transaction_session_timeout', least(greatest((until
            - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) / 1000, 5000), 2147483647,
            nullif((extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0)
            )::text, true);
    END IF;

    -- A separate statement after the locks were granted: its snapshot has all jobs that waited before.
    IF chains IS NOT NULL THEN
        SELECT array_agg(d.id), array_agg(d.edges), array_agg(d.cause), array_agg(d.cause_chain)
        INTO dependants, edges, causes, cause_chains
        FROM (
            SELECT b.job_id AS id, count(*)::integer AS edges, (array_agg(c.ender))[1] AS cause,
                (array_agg(c.id))[1] AS cause_chain
            FROM unnest(enders, chains) AS c(ender, id)
            CROSS JOIN LATERAL (SELECT b.job_id FROM {schema}.blocker AS b WHERE b.chain_id = c.id OFFSET 0) AS b
            GROUP BY b.job_id
        ) AS d;
        LOOP
            SELECT count(*) INTO held
            FROM (
                SELECT w.id FROM {schema}.waiting AS w WHERE w.id = ANY (dependants) ORDER BY w.id FOR UPDATE
            ) AS x;
            -- Another transaction may have deleted a row while this one waited for its lock. Either the job waits no more,
            -- or it has a new row, which must be locked too.
            EXIT WHEN held = (SELECT count(*) FROM {schema}.waiting AS w WHERE w.id = ANY (dependants));
        END LOOP;
    END IF;

    -- Again a separate statement: its snapshot has the changes that other transactions made to `remaining`.
    RETURN QUERY
    WITH clock AS MATERIALIZED (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
    ), gone AS (
        DELETE FROM {schema}.running AS r
        USING unnest(jobs, fences, workers, outputs) AS u(id, fence, worker, output) WHERE r.id = ANY (ARRAY[u.id])
        RETURNING r.id, r.scheduled_at, r.started_at, r.attempt, r.claims, r.awaited, r.keyed, r.chain_type_id,
            r.chain_created_at, u.fence, u.worker, u.output
    ), result AS (
        INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final,
            started_at, settled_fence, completed_by, output)
        SELECT g.id, clock.now, g.chain_created_at, g.scheduled_at, g.chain_type_id, g.attempt, g.claims, true, g.started_at,
            g.fence, g.worker, g.output
        FROM gone AS g CROSS JOIN clock
    ), key AS (
        DELETE FROM {schema}.open_key AS k WHERE k.chain_id = ANY (ARRAY(
            SELECT j.chain_id
            FROM gone AS g
            CROSS JOIN LATERAL (SELECT j.chain_id, j.keyed FROM {schema}.job AS j WHERE j.id = g.id OFFSET 0) AS j
            WHERE g.keyed AND j.keyed
        ))
    ), fewer AS (
        UPDATE {schema}.waiting AS w SET remaining = w.remaining - u.edges
        FROM unnest(dependants, edges) AS u(id, edges) WHERE w.id = ANY (ARRAY[u.id]) AND w.remaining > u.edges
    ), free AS (
        DELETE FROM {schema}.waiting AS w
        USING unnest(dependants, edges, causes, cause_chains) AS u(id, edges, cause, cause_chain)
        WHERE w.id = ANY (ARRAY[u.id]) AND w.remaining <= u.edges
        RETURNING w.*, u.cause, u.cause_chain
    ), marked AS (
        UPDATE {schema}.blocker AS b SET ended_last = true
        FROM free AS f WHERE b.chain_id = ANY (ARRAY[f.cause_chain]) AND b.job_id = ANY (ARRAY[f.id])
    ), later AS (
        INSERT INTO {schema}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at,
            settled_fence)
        SELECT f.id, f.scheduled_at, f.type_id, f.attempt, f.claims, f.priority, f.awaited, f.started_at, f.settled_fence
        FROM free AS f CROSS JOIN clock WHERE f.scheduled_at > clock.now
    ), ready AS (
        INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at,
            settled_fence)
        SELECT f.id, clock.now - f.priority * the_step, clock.now, f.type_id, f.attempt, f.claims, f.priority, f.awaited,
            f.started_at, f.settled_fence
        FROM free AS f CROSS JOIN clock WHERE f.scheduled_at <= clock.now
    )
    SELECT g.id, g.awaited, NULL::uuid, NULL::uuid, NULL::integer FROM gone AS g
    UNION ALL
    SELECT f.cause, true, f.id, j.chain_id, f.type_id
    FROM free AS f CROSS JOIN LATERAL (SELECT j.chain_id FROM {schema}.job AS j WHERE j.id = f.id OFFSET 0) AS j;
END
{body};
