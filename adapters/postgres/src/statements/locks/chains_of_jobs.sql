-- The chains of jobs that exist.
--
-- Parameters: $1 jobs.
SELECT id, chain_id
FROM {schema}.job
WHERE id = ANY ($1::uuid[])
