-- Whether the role may create what is missing, and whether the tables that exist are another role's.
--
-- Parameters: $1 schema, $2 whether the schema does not exist, $3 tables.
SELECT
    quote_ident(current_user::text) AS role,
    quote_ident(current_database()::text) AS database,
    CASE
        WHEN $2 THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege($1, 'CREATE')
    END AS may_create,
    (
        SELECT min(quote_ident(class.relowner::regrole::text))
        FROM pg_class AS class
        JOIN pg_namespace AS namespace
            ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1
            AND class.relname = ANY ($3)
            AND NOT pg_has_role(class.relowner, 'USAGE')
    ) AS other_owner
