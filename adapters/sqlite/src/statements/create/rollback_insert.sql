-- Undoes the statements of an insertion that failed.
ROLLBACK TO queuert_rows
