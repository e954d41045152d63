-- Inserts the blockers of new jobs.
--
-- ?1: a JSON array of [job id, position, chain id, whether the chain has completed].
INSERT INTO {prefix}blocker (job_id, position, chain_id, done)
SELECT
    unhex(value ->> 0),
    value ->> 1,
    unhex(value ->> 2),
    value ->> 3
FROM json_each(?1)
