-- Deletes the row of this process: no other process can judge it any more.
--
-- Parameters: $1 the key of this process.
DELETE FROM {schema}.process AS process
WHERE process.key = $1
