-- All other processes, with their last sign of life, and whether no session holds their lock.
--
-- Parameters: $1 the key of this process.
-- Locks: the advisory locks that are free, for no longer than this takes.
-- Reason: rows from before the last start of the server do not count.
SELECT process.key, process.renewed_at, pg_try_advisory_xact_lock(process.key) AS is_free
FROM {schema}.process AS process
WHERE process.key <> $1 AND process.registered_at > {server_start}
