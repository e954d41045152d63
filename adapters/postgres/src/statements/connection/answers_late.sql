-- An answer that takes the server a while: a connection can read one that is there when it looks, but cannot wait for one
-- while no runtime drives it.
SELECT pg_sleep(0.002)
