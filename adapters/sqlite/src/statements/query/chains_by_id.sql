-- Chains, in the order of their ids in the parameter.
--
-- ?1: a JSON array of chain ids.
SELECT {chain_columns}
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS first_job
    ON first_job.id = unhex(wanted.value)
    AND first_job.chain_index = 0
CROSS JOIN {prefix}job AS latest_job
    ON latest_job.seq = {latest_job_of(first_job.id)}
ORDER BY wanted.key
