-- The jobs that run under a fence.
--
-- Parameters: $1 fence.
-- Reason: it reads the whole table, which has only the jobs in flight.
SELECT running.id
FROM {schema}.running AS running
WHERE running.fence = $1
