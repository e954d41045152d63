-- All processes, with whether each is one of those that are taken for dead and its lock was free.
--
-- Parameters: $1 keys of the processes that are taken for dead.
-- Locks: the advisory locks of the dead, until the transaction ends: none of them can come back before that.
SELECT
    process.key,
    process.workers,
    CASE WHEN process.key = ANY ($1::bigint[]) THEN pg_try_advisory_xact_lock(process.key) ELSE false END AS is_dead
FROM {schema}.process AS process
WHERE process.registered_at > {server_start}
