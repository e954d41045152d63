-- The version and the settings of the server, before anything else is asked of it.
--
-- Reason: sent as one plain message, which no pooler can tear apart.
SELECT
    current_setting('server_version_num') AS version_number,
    current_setting('server_version') AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('plan_cache_mode') AS plan_cache_mode,
    current_setting('enable_seqscan') AS enable_seqscan,
    current_setting('enable_bitmapscan') AS enable_bitmapscan,
    current_setting('jit') AS jit,
    current_setting('default_transaction_isolation') AS isolation,
    current_setting('default_transaction_read_only') AS read_only,
    current_setting('default_transaction_deferrable') AS deferrable,
    current_user::text AS role,
    current_database()::text AS database,
    (
        current_setting('idle_in_transaction_session_timeout')::interval
            BETWEEN interval '1 millisecond' AND interval '5 seconds'
    )::text AS has_short_idle_limit
