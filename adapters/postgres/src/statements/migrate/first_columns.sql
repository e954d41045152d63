-- The tables of a schema that have names of this library's, each with its first column.
--
-- Parameters: $1 schema, $2 tables.
SELECT class.relname::text, attribute.attname::text
FROM pg_class AS class
JOIN pg_namespace AS namespace
    ON namespace.oid = class.relnamespace
JOIN pg_attribute AS attribute
    ON attribute.attrelid = class.oid AND attribute.attnum = 1
WHERE namespace.nspname = $1
    AND class.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND class.relname = ANY ($2)
