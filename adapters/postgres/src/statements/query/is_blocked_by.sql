-- A condition: the job has the chain as blocker.
--
-- Values: `chain`.
(
    SELECT 1
    FROM {schema}.blocker AS blocker
    WHERE blocker.chain_id = {chain} AND blocker.job_id = job.id
    LIMIT 1
) IS NOT NULL
