-- Looks types up by their names.
--
-- Parameters: $1 names.
-- Answer: a row per type that exists.
SELECT id, name
FROM {schema}.job_type
WHERE name = ANY ($1::text[])
