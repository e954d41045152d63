-- The time, and whether the transaction sees one moment for its whole life.
--
-- Answer: one row. In a transaction of the caller's (`guarded`) it is an error if that has ended.
SELECT
--: if guarded
    CASE WHEN {in_transaction} THEN {now} ELSE {transaction_ended}::bigint END AS now,
--: else
    {now} AS now,
--: end
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS sees_one_moment
