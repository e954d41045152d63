-- Before locks that may have to be released again.
SAVEPOINT queuert_lock
