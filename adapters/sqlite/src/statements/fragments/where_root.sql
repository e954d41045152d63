-- A condition of list_chains.sql: no job waits or has waited for the chain.
NOT EXISTS (
    SELECT 1
    FROM {prefix}blocker AS blocker
    WHERE blocker.chain_id = first_job.id
)
