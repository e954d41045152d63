-- Stores the latest failures of jobs.
--
-- Parameters: $1 ids, $2 attempts, $3 times, $4 messages.
INSERT INTO {schema}.failure AS failure (id, attempt, at, message)
SELECT *
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::text[])
ON CONFLICT (id) DO UPDATE
SET attempt = excluded.attempt, at = excluded.at, message = excluded.message
