-- Limits the idle time of a transaction that ends an attempt in several statements.
--
-- Parameters: $1 the end of the lease.
SELECT {limit_idle_time:$1::bigint} AS idle_limit
