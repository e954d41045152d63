-- Notes that chains have completed, for the jobs that wait for them.
--
-- ?1: a JSON array of chain ids.
UPDATE {prefix}blocker
SET done = 1
WHERE done = 0
    AND chain_id IN (SELECT unhex(value) FROM json_each(?1))
