-- The server's clock, not the start of the transaction, in microseconds since 1970.
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
