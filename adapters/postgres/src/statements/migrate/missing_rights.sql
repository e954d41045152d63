-- The rights to the schema and its tables that the role lacks.
--
-- Parameters: $1 schema, $2 tables.
-- Answer: a row per table and right; one row without a table if nothing is missing, or only the right to the schema.
SELECT
    class.relname::text AS table_name,
    privilege.name AS privilege,
    quote_ident(current_user::text) AS role,
    has_schema_privilege(namespace.oid, 'USAGE') AS may_use_schema
FROM pg_namespace AS namespace
LEFT JOIN (
    pg_class AS class
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege(name)
)
    ON class.relnamespace = namespace.oid
    AND class.relname = ANY ($2)
    AND (class.relname <> 'migration' OR privilege.name = 'SELECT')
    AND NOT has_table_privilege(class.oid, privilege.name)
WHERE namespace.nspname = $1
ORDER BY 2, 1
