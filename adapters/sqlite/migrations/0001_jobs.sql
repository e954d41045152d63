-- One row per job, changed in place: SQLite keeps no old versions, so there is nothing to gain from spreading the
-- states of a job over tables.
CREATE TABLE {prefix}job (
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    chain_id BLOB NOT NULL,
    chain_index INTEGER NOT NULL,
    -- 1 on the latest job of a chain, whose status is the chain's.
    latest INTEGER NOT NULL,
    -- 0 blocked, 1 pending, 2 running, 3 completed, 4 dead, 5 cancelled.
    status INTEGER NOT NULL,
    type TEXT NOT NULL,
    chain_type TEXT NOT NULL,
    -- Copied to every job of the chain, so that an index over latest jobs can list chains in order.
    chain_created_at INTEGER NOT NULL,
    -- 1 on every job of a chain that was started with a deduplication key.
    chain_keyed INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    scheduled_at INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    -- The order of claiming: scheduled time minus priority times the ageing step.
    rank INTEGER NOT NULL,
    -- 1 once the scheduled time has come. A claim moves jobs over, so that those due later never lie in its way.
    due INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    claims INTEGER NOT NULL,
    max_attempts INTEGER,
    -- How many chains it was created to wait for.
    blockers INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    lease_owner TEXT,
    lease_until INTEGER,
    fence BLOB,
    -- The fence under which an attempt last ended: tells a repetition from a loss.
    settled_fence BLOB,
    completed_by TEXT,
    error_attempt INTEGER,
    error_at INTEGER,
    error TEXT,
    deduplication_key TEXT,
    -- The key again while the chain is open, so that a key with a long history costs no more than a new one.
    open_key TEXT,
    trace_context TEXT,
    input TEXT NOT NULL,
    output TEXT
) STRICT;

CREATE UNIQUE INDEX {prefix}job_id ON {prefix}job (id);

-- The first job of a chain has the chain's id, so the index above covers it.
CREATE UNIQUE INDEX {prefix}job_chain ON {prefix}job (chain_id, chain_index) WHERE chain_index > 0;

-- Claims read one ordered run per type and merge them.
CREATE INDEX {prefix}job_queue ON {prefix}job (type, rank, id) WHERE status = 1 AND due = 1;

CREATE INDEX {prefix}job_later ON {prefix}job (type, scheduled_at) WHERE status = 1 AND due = 0;

CREATE INDEX {prefix}job_lease ON {prefix}job (lease_until) WHERE status = 2;

CREATE INDEX {prefix}job_created ON {prefix}job (created_at);

-- Chains by status. Pending and running ones are found through the queue and the leases; leaving them out here spares
-- every claim the change of an index.
CREATE INDEX {prefix}job_rest ON {prefix}job (status, chain_created_at) WHERE latest = 1 AND status NOT IN (1, 2);

CREATE INDEX {prefix}job_key ON {prefix}job (type, deduplication_key, created_at) WHERE deduplication_key IS NOT NULL;

CREATE INDEX {prefix}job_open_key ON {prefix}job (type, open_key) WHERE open_key IS NOT NULL;

-- Who waits, or has waited, for which chain. `done` is set when that chain completes, which is final.
CREATE TABLE {prefix}blocker (
    job_id BLOB NOT NULL,
    position INTEGER NOT NULL,
    chain_id BLOB NOT NULL,
    done INTEGER NOT NULL,
    PRIMARY KEY (job_id, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX {prefix}blocker_chain ON {prefix}blocker (chain_id, done);

CREATE INDEX {prefix}blocker_open ON {prefix}blocker (job_id) WHERE done = 0;

-- Hints for other processes that they cannot read off the jobs themselves. Only the newest are kept.
CREATE TABLE {prefix}notice (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    origin BLOB NOT NULL,
    -- 0 jobs available, 1 chain ended, 2 lease lost.
    kind INTEGER NOT NULL,
    id BLOB,
    type TEXT,
    count INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT;
