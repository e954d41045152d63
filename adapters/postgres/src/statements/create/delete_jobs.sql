-- Takes back jobs that this transaction has just inserted.
--
-- Parameters: $1 jobs.
DELETE FROM {schema}.job
WHERE id = ANY ($1::uuid[])
