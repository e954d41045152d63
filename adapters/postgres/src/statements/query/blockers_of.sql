-- The blocker chains of jobs, whole.
--
-- Parameters: $1 jobs.
-- Answer: a row per edge, with the job as `blocked_job_id`, in the declared order of each job.
SELECT
    {chain_columns},
    blocker.job_id AS blocked_job_id
FROM {schema}.blocker AS blocker
JOIN {schema}.job AS first
    ON first.id = blocker.chain_id AND first.chain_index = 0
{latest_job:first.id}
CROSS JOIN LATERAL (
    {state:latest.id}
) AS state
{failure:latest.id}
WHERE blocker.job_id = ANY ($1::uuid[])
ORDER BY blocker.job_id, blocker.position
