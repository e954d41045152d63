-- For which chains each of the given chains waits, or would wait if it were retried.
--
-- ?1: a JSON array of chain ids.
SELECT
    unhex(waiting.value) AS chain,
    blocker.chain_id AS blocker
FROM json_each(?1) AS waiting
CROSS JOIN {prefix}job AS latest_job
    ON latest_job.seq = {latest_job_of(unhex(waiting.value))}
    AND latest_job.status IN (0, 4, 5)
CROSS JOIN {prefix}blocker AS blocker
    ON blocker.job_id = latest_job.id
    AND blocker.done = 0
