-- Finishes chains, whether or not jobs wait for them. `0001_schema.sql` describes the function.
--
-- Parameters: $1 jobs, $2 fences, $3 workers, $4 outputs, $5 the ageing step, $6 how long to wait for a lock (null: without
-- limit).
SELECT finished, was_awaited, unblocked, unblocked_chain, unblocked_type
FROM {schema}.finish_many($1, $2, $3, $4, $5, $6)
