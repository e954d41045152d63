-- Whether the transaction has the mark of one in which the library writes for the caller. The mark goes with the
-- transaction, however that ends. There are two: the setting of `mark.sql`, and, of transactions that the library has begun,
-- that they are deferrable where others are not, which costs no statement. Only the chained transaction of a caller's
-- `COMMIT AND CHAIN` or `ROLLBACK AND CHAIN` has the second mark again. What the library writes there commits as a whole.
(
    current_setting('queuert.transaction', true) = 'open'
    OR current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')
)
