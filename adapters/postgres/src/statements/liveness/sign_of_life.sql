-- Says that this process lives.
--
-- Parameters: $1 the key of this process.
UPDATE {schema}.process
SET renewed_at = {now}
WHERE key = $1
