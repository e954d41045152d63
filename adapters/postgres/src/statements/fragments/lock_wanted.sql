-- Locks the rows of the wanted jobs in one table; a part of `locks/lock_chains.sql`.
--
-- Argument: the table.
SELECT state_row.id
FROM {schema}.{argument} AS state_row
WHERE state_row.id = ANY (ARRAY(SELECT job_id FROM wanted))
ORDER BY state_row.id
FOR UPDATE
--: if skips
SKIP LOCKED
--: end
