-- Locks the rows of processes that are taken for dead and have given no sign of life since.
--
-- Parameters: $1 keys, $2 their last signs of life.
-- Answer: a row per process that is still silent.
-- Locks: the rows, until the transaction ends: no sign of life can come before that. A row that another transaction has
-- locked is left out.
SELECT process.key
FROM {schema}.process AS process
JOIN unnest($1::bigint[], $2::bigint[]) AS suspect(key, renewed_at)
    ON suspect.key = process.key AND suspect.renewed_at = process.renewed_at
FOR UPDATE OF process SKIP LOCKED
