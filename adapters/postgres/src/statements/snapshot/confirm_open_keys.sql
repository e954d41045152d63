-- Confirms that open chains with a key are what the snapshot of the transaction shows.
--
-- Parameters: $1 chains.
-- Locks: the rows, in the weakest mode. The server refuses the lock of a row that has changed since the snapshot. A row
-- that another transaction has locked has not changed yet, and is skipped.
SELECT 1
FROM {schema}.open_key
WHERE chain_id = ANY ($1::uuid[])
FOR KEY SHARE SKIP LOCKED
