-- Looks types up by their numbers.
--
-- Parameters: $1 numbers.
-- Answer: a row per type that exists.
SELECT id, name
FROM {schema}.job_type
WHERE id = ANY ($1::integer[])
