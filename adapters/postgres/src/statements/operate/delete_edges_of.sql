-- Deletes the edges of jobs to their blockers.
--
-- Parameters: $1 jobs.
DELETE FROM {schema}.blocker
WHERE job_id = ANY ($1::uuid[])
