-- The functions of the schema that the role may not call. Every role may call a function, unless the database was told
-- otherwise.
--
-- Parameters: $1 schema, $2 functions.
SELECT procedure.oid::regprocedure::text AS function, quote_ident(current_user::text) AS role
FROM pg_proc AS procedure
JOIN pg_namespace AS namespace
    ON namespace.oid = procedure.pronamespace
WHERE namespace.nspname = $1
    AND procedure.proname = ANY ($2)
    AND NOT has_function_privilege(procedure.oid, 'EXECUTE')
ORDER BY 1
