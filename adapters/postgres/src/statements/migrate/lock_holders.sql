-- The sessions that hold locks of the schema's tables, the longest transaction first.
--
-- Parameters: $1 schema.
SELECT format('%s (%s)', activity.pid, coalesce(nullif(activity.application_name, ''), 'no name'))
FROM pg_stat_activity AS activity
WHERE activity.pid <> pg_backend_pid()
    AND activity.datname = current_database()
    AND EXISTS (
        SELECT 1
        FROM pg_locks AS locks
        JOIN pg_class AS class
            ON class.oid = locks.relation
        JOIN pg_namespace AS namespace
            ON namespace.oid = class.relnamespace
        WHERE locks.pid = activity.pid AND locks.granted AND namespace.nspname = $1
    )
ORDER BY activity.xact_start, activity.pid
LIMIT 10
