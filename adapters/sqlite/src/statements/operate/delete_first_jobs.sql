-- Deletes the first jobs of chains.
--
-- ?1: a JSON array of chain ids.
DELETE FROM {prefix}job
WHERE id IN (SELECT unhex(value) FROM json_each(?1))
