-- The storage of queuert in SQLite. All names begin with the prefix of the store.
--
-- Times are microseconds since 1970, by the clock of the machine. Ids and fences are the 16 bytes of a UUID. Truth
-- values are 0 and 1.

-- The migrations that were applied to this schema. It belongs to this library alone: migrations of the application do
-- not use it.
CREATE TABLE {prefix}migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- One row per job, changed in place: SQLite keeps no old versions of rows, so there is nothing to gain from spreading
-- the states of a job over tables.
CREATE TABLE {prefix}job (
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    -- The id of the chain, which is the id of its first job.
    chain_id BLOB NOT NULL,
    -- The place of the job in its chain, from zero.
    chain_index INTEGER NOT NULL,
    -- 1 on the latest job of a chain, whose status is the chain's.
    latest INTEGER NOT NULL,
    -- 0 blocked, 1 pending, 2 running, 3 completed, 4 dead, 5 cancelled.
    status INTEGER NOT NULL,
    type TEXT NOT NULL,
    chain_type TEXT NOT NULL,
    -- When the chain was created: copied to every job, so that an index over latest jobs can list chains in order.
    chain_created_at INTEGER NOT NULL,
    -- 1 on every job of a chain that was started with a deduplication key.
    chain_keyed INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    scheduled_at INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    -- The order of claiming: scheduled time minus priority times the ageing step.
    rank INTEGER NOT NULL,
    -- 1 once the scheduled time has come. A claim sets it on jobs that have become due, so that it need not read jobs
    -- that are due later.
    due INTEGER NOT NULL,
    -- The number of attempts that have begun. An attempt that is given back does not count.
    attempt INTEGER NOT NULL,
    -- How often the job was claimed, whatever became of it.
    claims INTEGER NOT NULL,
    -- Null: there is no limit.
    max_attempts INTEGER,
    -- How many chains the job was created to wait for, repetitions counted.
    blockers INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    -- The lease of a running job: the id of the workers that have it, when it ends, and the fence, chosen anew by every
    -- claim, that an attempt must know to renew the lease or to end the job.
    lease_owner TEXT,
    lease_until INTEGER,
    fence BLOB,
    -- The fence under which an attempt last ended. An end that arrives again under this fence is a repetition; under
    -- any other fence it comes from an attempt that has lost the job.
    settled_fence BLOB,
    completed_by TEXT,
    -- The latest failure: the attempt, the time and the message.
    error_attempt INTEGER,
    error_at INTEGER,
    error TEXT,
    -- The deduplication key of the chain, in first jobs only.
    deduplication_key TEXT,
    -- The same key while the chain is open, so that a start with a key of many past chains finds the open one at once.
    open_key TEXT,
    trace_context TEXT,
    input TEXT NOT NULL,
    output TEXT
) STRICT;

CREATE UNIQUE INDEX {prefix}job_id ON {prefix}job (id);

-- Finds the jobs of a chain, the latest first, and makes sure that a job has one successor. The index above finds first
-- jobs, because they have the id of their chain.
CREATE UNIQUE INDEX {prefix}job_chain ON {prefix}job (chain_id, chain_index) WHERE chain_index > 0;

-- Claims read one ordered run of this index per type and merge the runs.
CREATE INDEX {prefix}job_queue ON {prefix}job (type, rank, id) WHERE status = 1 AND due = 1;

-- Finds the jobs that have become due.
CREATE INDEX {prefix}job_later ON {prefix}job (type, scheduled_at) WHERE status = 1 AND due = 0;

-- Finds expired leases, and the running jobs.
CREATE INDEX {prefix}job_lease ON {prefix}job (lease_until) WHERE status = 2;

-- Lists by time of creation.
CREATE INDEX {prefix}job_created ON {prefix}job (created_at);

-- Chains by status, for lists and for retention. The indexes of the queue and of the leases find pending and running
-- chains; because those are not in this index, a claim does not have to change it.
CREATE INDEX {prefix}job_rest ON {prefix}job (status, chain_created_at) WHERE latest = 1 AND status NOT IN (1, 2);

-- All chains that were ever started with a key, for deduplication over a period of time.
CREATE INDEX {prefix}job_key ON {prefix}job (type, deduplication_key, created_at) WHERE deduplication_key IS NOT NULL;

-- The open chains with a key. Not unique: a starter may exclude open chains by id.
CREATE INDEX {prefix}job_open_key ON {prefix}job (type, open_key) WHERE open_key IS NOT NULL;

-- One row for every chain that a job waits for or has waited for.
CREATE TABLE {prefix}blocker (
    job_id BLOB NOT NULL,
    -- The place of the blocker among those of the job, from zero.
    position INTEGER NOT NULL,
    chain_id BLOB NOT NULL,
    -- 1 once that chain has completed, which is final; 2 if it was the last one for which the job waited.
    done INTEGER NOT NULL,
    PRIMARY KEY (job_id, position)
) STRICT, WITHOUT ROWID;

-- Finds the jobs that wait for a chain.
CREATE INDEX {prefix}blocker_chain ON {prefix}blocker (chain_id, done);

-- Tells whether a job still waits for a chain.
CREATE INDEX {prefix}blocker_open ON {prefix}blocker (job_id) WHERE done = 0;

-- Hints for other processes, which they cannot read from the jobs themselves. Only the newest are kept.
CREATE TABLE {prefix}notice (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The process that wrote it, which does not need the hint.
    origin BLOB NOT NULL,
    -- 0 jobs available, 1 chain ended, 2 lease lost, 3 pauses changed.
    kind INTEGER NOT NULL,
    id BLOB,
    type TEXT,
    count INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT;

-- The job types that operators have paused: workers claim no jobs of them. A row whose end has passed counts as absent.
CREATE TABLE {prefix}pause (
    type TEXT NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL,
    -- Null: until the type is resumed.
    until INTEGER,
    reason TEXT,
    author TEXT
) STRICT, WITHOUT ROWID;

-- The processes with their workers, so that the jobs of a process that has died can be taken back before their leases
-- expire. For each key there is a file beside the database (`..-alive-<key>`), which its process has locked for as long
-- as it lives. A process writes a row once per set of workers.
CREATE TABLE {prefix}process (
    key BLOB NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (key, worker)
) STRICT, WITHOUT ROWID;
