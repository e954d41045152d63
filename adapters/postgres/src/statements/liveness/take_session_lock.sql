-- Takes the advisory lock that tells all other processes that this one lives. The session has it until it ends.
--
-- Parameters: $1 the key of this process.
-- Locks: waits for a process that just looks whether the lock is free, which takes no time.
SELECT pg_advisory_lock_shared($1)
