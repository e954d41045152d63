-- Where a job stands is where its row is. `job` and `result` are facts: written once, never changed. The narrow tables
-- between them hold what is open: `waiting` (blocked), `later` and `ready` (pending), `running`; `stopped` holds the
-- dead and the cancelled. A job that exists has a row in exactly one of those five tables or in `result`.
--
-- The row of a chain's latest job in one of these six tables is the chain's lock: who changes a chain has locked,
-- changed or moved it. So a claim or an end locks what it moves anyway and nothing else.
--
-- Times are microseconds since 1970, by the clock of this server. There are no foreign keys: each would cost a trigger
-- and a row lock for every row.

CREATE TABLE {schema}.job_type (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE {schema}.job (
    created_at bigint NOT NULL,
    -- Copied from the chain's first job, like the type below.
    chain_created_at bigint NOT NULL,
    chain_index integer NOT NULL,
    type_id integer NOT NULL,
    chain_type_id integer NOT NULL,
    -- How many chains it was created to wait for, repetitions counted.
    blockers integer NOT NULL,
    priority smallint NOT NULL,
    -- Whether the chain was started with a deduplication key.
    keyed boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    chain_id uuid NOT NULL,
    input text NOT NULL,
    max_attempts bigint,
    -- First jobs only.
    dedup_key text COLLATE "C",
    trace_context text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05);

-- One successor per job. A first job has the id of its chain, so the primary key covers it, and a chain of one step
-- pays for one index less.
CREATE UNIQUE INDEX job_chain ON {schema}.job (chain_id, chain_index) WHERE chain_index > 0;

-- Lists, newest or oldest first, by type; a list over all types merges one run per type. First jobs apart from others,
-- so that a list of chains does not read what only continues them. With the id, because a batch of jobs has one time.
CREATE INDEX job_first ON {schema}.job (type_id, created_at, id) WHERE chain_index = 0;

CREATE INDEX job_next ON {schema}.job (type_id, created_at, id) WHERE chain_index > 0;

-- All chains that were ever started with a key.
CREATE INDEX job_key ON {schema}.job (type_id, dedup_key, created_at) WHERE dedup_key IS NOT NULL;

-- Pending and due. `awaited` (here and below): some job has this chain as blocker, so that its end must look for it.
-- `settled_fence`: the fence under which an attempt last ended, which tells a repetition from a loss.
CREATE TABLE {schema}.ready (
    -- The order of claiming: scheduled time minus priority times the ageing step.
    rank bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL,
    started_at bigint,
    settled_fence uuid
) WITH (
    vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000
);

CREATE INDEX ready_claim ON {schema}.ready (type_id, rank, id);

CREATE UNIQUE INDEX ready_id ON {schema}.ready (id);

-- Pending and due later: out of the way of claims, which move over what has become due.
CREATE TABLE {schema}.later (
    scheduled_at bigint NOT NULL,
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    started_at bigint,
    settled_fence uuid
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1
);

CREATE INDEX later_due ON {schema}.later (type_id, scheduled_at);

-- Blocked. `remaining`: edges to chains that have not completed; whoever takes the last one moves the row on.
CREATE TABLE {schema}.waiting (
    scheduled_at bigint NOT NULL,
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    remaining integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    started_at bigint,
    settled_fence uuid
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1
);

-- No index over leases: it would make every renewal write an index, and the table holds no more than what is in
-- flight, so that a sweep reads little.
CREATE TABLE {schema}.running (
    leased_until bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    started_at bigint NOT NULL,
    type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    fence uuid NOT NULL,
    owner text NOT NULL,
    settled_fence uuid
) WITH (
    fillfactor = 90, vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000
);

-- Completed, which is for ever.
CREATE TABLE {schema}.result (
    ended_at bigint NOT NULL,
    chain_created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    -- Here, although it may be missing: anywhere else it would be padded.
    started_at bigint,
    chain_type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    -- Whether the chain completed with this job; otherwise it was continued.
    final boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    settled_fence uuid,
    completed_by text,
    output text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05);

-- Completed chains, for lists and for retention.
CREATE INDEX result_chain ON {schema}.result (chain_type_id, chain_created_at) WHERE final;

-- Dead (4) or cancelled (5), until somebody retries or deletes them.
CREATE TABLE {schema}.stopped (
    ended_at bigint NOT NULL,
    chain_created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    chain_type_id integer NOT NULL,
    attempt integer NOT NULL,
    claims integer NOT NULL,
    status smallint NOT NULL,
    awaited boolean NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    started_at bigint,
    settled_fence uuid
);

CREATE INDEX stopped_chain ON {schema}.stopped (status, chain_type_id, chain_created_at);

-- The latest failure of a job that has failed; it is shown unless the job has completed since.
CREATE TABLE {schema}.failure (
    at bigint NOT NULL,
    attempt integer NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    message text NOT NULL
);

-- Who waits, or has waited, for which chain. Edges to a chain go when it is deleted.
CREATE TABLE {schema}.blocker (
    position integer NOT NULL,
    job_id uuid NOT NULL,
    chain_id uuid NOT NULL,
    PRIMARY KEY (job_id, position)
);

CREATE INDEX blocker_chain ON {schema}.blocker (chain_id, job_id);

-- The open chains that were started with a key: there may be more than one, because a starter may leave some out.
CREATE TABLE {schema}.open_key (
    created_at bigint NOT NULL,
    type_id integer NOT NULL,
    chain_id uuid NOT NULL PRIMARY KEY,
    key text COLLATE "C" NOT NULL
);

CREATE INDEX open_key_key ON {schema}.open_key (type_id, key, created_at);

-- What makes starters of one key wait for each other: each locks this row first, then looks.
CREATE TABLE {schema}.key_lock (
    type_id integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    PRIMARY KEY (type_id, key)
);
