-- The first half of the watermark: the time, and the sessions that have a transaction or may have one.
--
-- Answer: one row: the time, before anything else is looked at; whether this server is a standby; the role; and as
-- arrays, for each session, its process, when its transaction began, and its role.
SELECT
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS now,
    pg_is_in_recovery() AS is_standby,
    current_user::text AS own_role,
    array_agg(activity.pid) AS processes,
    array_agg((extract(epoch FROM activity.xact_start) * 1000000)::bigint) AS beginnings,
    array_agg(activity.usename::text) AS roles
FROM pg_stat_activity AS activity
WHERE activity.xact_start IS NOT NULL OR activity.state IS NULL OR activity.state = 'disabled'
