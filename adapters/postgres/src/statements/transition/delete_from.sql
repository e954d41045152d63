-- Deletes the rows of jobs from a table that has one row per job.
--
-- Parameters: $1 jobs.
-- Values: `table`.
DELETE FROM {schema}.{table}
WHERE id = ANY ($1::uuid[])
