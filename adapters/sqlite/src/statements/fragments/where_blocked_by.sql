-- A condition of list_jobs.sql: the job waits or has waited for the given chain.
--
-- {chain}: the id of the chain.
job.id IN (
    SELECT job_id
    FROM {prefix}blocker
    WHERE chain_id = {chain}
)
