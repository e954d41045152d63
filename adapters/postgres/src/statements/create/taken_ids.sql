-- Those of the ids that a job has.
--
-- Parameters: $1 ids.
SELECT id
FROM {schema}.job
WHERE id = ANY ($1::uuid[])
