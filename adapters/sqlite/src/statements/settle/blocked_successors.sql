-- Which jobs were continued with a job that was blocked: it waits for an open chain, or did until the last one completed.
--
-- ?1: a JSON array of job ids.
SELECT ended.key AS place
FROM json_each(?1) AS ended
CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_id
    ON job.id = unhex(ended.value)
CROSS JOIN {prefix}job AS next_job INDEXED BY {prefix}job_chain
    ON next_job.chain_id = job.chain_id
    AND next_job.chain_index = job.chain_index + 1
    AND next_job.chain_index > 0
WHERE EXISTS (
    SELECT 1
    FROM {prefix}blocker AS blocker
    WHERE blocker.job_id = next_job.id
        AND blocker.done <> 1
)
