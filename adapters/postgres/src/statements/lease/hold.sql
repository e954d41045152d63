-- Locks the row of a running job for a transaction of its attempt, which is to commit now.
--
-- Parameters: $1 job, $2 fence.
-- Answer: one row if the job runs under the fence. It is an error if the transaction of the caller has ended.
-- Locks: the row of `running`. Another transaction that has it is waited for.
SELECT
    CASE
        WHEN {in_transaction} THEN {limit_idle_time:leased_until}
        ELSE {transaction_ended}::text
    END AS idle_limit
FROM {schema}.running
WHERE id = $1
--: if ignores_fences
    AND $2::uuid IS NOT NULL
--: else
    AND fence = $2
--: end
FOR UPDATE
