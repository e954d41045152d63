-- Keeps what was locked since the savepoint, or ends it after it was rolled back.
RELEASE SAVEPOINT queuert_lock
