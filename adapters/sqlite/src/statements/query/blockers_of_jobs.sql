-- The chains for which jobs wait or have waited, in the declared order, each with the job.
--
-- ?1: a JSON array of job ids.
SELECT
    {chain_columns},
    blocker.job_id AS blocked_job
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}blocker AS blocker
    ON blocker.job_id = unhex(wanted.value)
CROSS JOIN {prefix}job AS first_job
    ON first_job.id = blocker.chain_id
    AND first_job.chain_index = 0
CROSS JOIN {prefix}job AS latest_job
    ON latest_job.seq = {latest_job_of(first_job.id)}
ORDER BY wanted.key, blocker.position
