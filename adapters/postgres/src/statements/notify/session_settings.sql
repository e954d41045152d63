-- Settings of the listener's session: the server is to notice a process that has vanished, and not to end the session for
-- being quiet.
SELECT
    set_config('idle_session_timeout', '0', false),
    set_config('tcp_keepalives_idle', '15', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('tcp_user_timeout', '30000', false)
