-- Locks completed chains.
--
-- Parameters: $1 their last jobs.
-- Locks: the rows of `result`. One that another transaction has locked is left out.
SELECT job.chain_id, job.keyed
FROM {schema}.result AS result
JOIN {schema}.job AS job
    ON job.id = result.id
WHERE result.id = ANY ($1::uuid[]) AND result.final
FOR UPDATE OF result SKIP LOCKED
