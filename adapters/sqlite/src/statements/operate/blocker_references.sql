-- The jobs that have not completed and have one of the given chains as a blocker.
--
-- ?1: a JSON array of chain ids.
SELECT
    blocker.chain_id AS chain_id,
    blocker.job_id AS job_id,
    job.chain_id AS waiting_chain
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}blocker AS blocker
    ON blocker.chain_id = unhex(wanted.value)
CROSS JOIN {prefix}job AS job
    ON job.id = blocker.job_id
    AND job.status <> 3
GROUP BY blocker.chain_id, blocker.job_id
ORDER BY wanted.key, blocker.job_id
