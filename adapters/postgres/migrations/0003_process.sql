-- Which process has which workers, so that leases of a process that has died need not expire first. Its lifeline is a
-- session that holds the advisory lock `key` (shared) for as long as the process lives. One row per process, written when
-- it first claims jobs and when its lifeline was made anew.
--
-- Unlogged, and that is the point: a crash of the server ends all sessions, and empties this table with them. So does a
-- failover. Nobody is taken for dead then who has not come back yet.
CREATE UNLOGGED TABLE {schema}.process (
    key bigint NOT NULL PRIMARY KEY,
    -- Rows from before the last start of the server say nothing either.
    registered_at bigint NOT NULL,
    workers text[] NOT NULL
);
