-- Announces inside a transaction of the caller's.
--
-- Parameters: $1 the channel, $2 payloads.
SELECT pg_notify($1, payload)
FROM unnest($2::text[]) AS payload
