-- Releases what was locked since the savepoint.
ROLLBACK TO SAVEPOINT queuert_lock
