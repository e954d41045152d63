-- Deletes the rows that say which jobs wait for the given chains.
--
-- ?1: a JSON array of chain ids.
DELETE FROM {prefix}blocker
WHERE chain_id IN (SELECT unhex(value) FROM json_each(?1))
