-- The number of the session at the server, which tells two sessions from one that a pooler lends twice.
SELECT pg_backend_pid() AS process
