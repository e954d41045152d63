-- Locks the rows of blocked jobs.
--
-- Parameters: $1 jobs.
-- Locks: the rows, in order of id. One that another transaction has locked is left out.
SELECT waiting.id, waiting.remaining
FROM {schema}.waiting AS waiting
WHERE waiting.id = ANY ($1::uuid[])
ORDER BY waiting.id
FOR UPDATE SKIP LOCKED
