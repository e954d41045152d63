-- When the server was last started, in microseconds since 1970.
(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
