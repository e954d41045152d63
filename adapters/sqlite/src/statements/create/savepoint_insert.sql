-- Begins an insertion that takes several statements.
SAVEPOINT queuert_rows
