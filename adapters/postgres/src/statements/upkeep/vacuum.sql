-- Clears a table of dead rows, outside any transaction.
--
-- Values: `table`.
-- Locks: it waits for no lock, keeps no other session from reading or writing, and does not give the end of the table back,
-- for which it would have to. Two vacuums of one table exclude each other.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PROCESS_TOAST false, PARALLEL 0) {schema}.{table}
