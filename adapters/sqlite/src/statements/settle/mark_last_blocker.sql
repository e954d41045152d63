-- Notes that a chain was the last one for which these jobs waited.
--
-- ?1: the chain id. ?2: a JSON array of job ids.
UPDATE {prefix}blocker
SET done = 2
WHERE chain_id = ?1
    AND job_id IN (SELECT unhex(value) FROM json_each(?2))
