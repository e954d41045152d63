-- Says whether there is a schema.
--
-- Parameters: $1 its name.
SELECT EXISTS (
    SELECT 1
    FROM pg_namespace
    WHERE nspname = $1
)
