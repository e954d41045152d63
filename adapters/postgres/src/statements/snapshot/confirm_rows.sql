-- Confirms that rows of a table are what the snapshot of the transaction shows.
--
-- Parameters: $1 jobs.
-- Values: `table`.
-- Locks: the rows, in the weakest mode. The server refuses the lock of a row that has changed since the snapshot. A row
-- that another transaction has locked has not changed yet, and is skipped.
SELECT 1
FROM {schema}.{table}
WHERE id = ANY ($1::uuid[])
FOR KEY SHARE SKIP LOCKED
