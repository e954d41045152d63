-- The chain of a job.
--
-- Parameters: $1 job.
SELECT chain_id
FROM {schema}.job
WHERE id = $1
