-- Says whether the database has these types under these names.
--
-- Parameters: $1 numbers, $2 names.
-- Answer: one row. In a transaction of the caller's (`guarded`) it is an error if that has ended.
SELECT
--: if guarded
    CASE WHEN {in_transaction} THEN {types_exist:$1::integer[], $2::text[]} ELSE {transaction_ended}::boolean END
--: else
    {types_exist:$1::integer[], $2::text[]}
--: end
    AS exist
