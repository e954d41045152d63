-- Finishes a chain for which no job waits, in a transaction of the caller's. `0001_schema.sql` describes the function.
--
-- Parameters: $1 job, $2 fence, $3 worker, $4 output.
-- Answer: whether it has; if not, nothing has changed. It is an error if the transaction of the caller has ended.
SELECT
    CASE
        WHEN {in_transaction} THEN {schema}.finish_one($1, $2, $3, $4)
        ELSE {transaction_ended}::boolean
    END AS finished
