-- Deletes the jobs of chains, except the first of each.
--
-- ?1: a JSON array of chain ids.
DELETE FROM {prefix}job
WHERE chain_index > 0
    AND chain_id IN (SELECT unhex(value) FROM json_each(?1))
