-- The dead and live rows of tables, as the server counts them, and whether the role may vacuum each.
--
-- Parameters: $1 schema, $2 tables.
-- Reason: a vacuum of a table for which the role lacks the right is skipped with nothing but a warning.
SELECT
    class.relname::text AS table_name,
    pg_stat_get_dead_tuples(class.oid) AS dead,
    pg_stat_get_live_tuples(class.oid) AS live,
    pg_has_role(class.relowner, 'USAGE')
        OR pg_has_role(database.datdba, 'USAGE')
        OR CASE
            WHEN current_setting('server_version_num')::integer >= 170000
            THEN has_table_privilege(class.oid, 'MAINTAIN')
            ELSE false
        END AS is_allowed
FROM pg_namespace AS namespace
JOIN pg_class AS class
    ON class.relnamespace = namespace.oid AND class.relname = ANY ($2)
JOIN pg_database AS database
    ON database.datname = current_database()
WHERE namespace.nspname = $1
