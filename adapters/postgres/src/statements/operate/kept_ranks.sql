-- The ranks of jobs in `later` that have kept another one than that of their scheduled time.
--
-- Parameters: $1 jobs.
SELECT id, rank
FROM {schema}.later
WHERE id = ANY ($1::uuid[]) AND rank IS NOT NULL
