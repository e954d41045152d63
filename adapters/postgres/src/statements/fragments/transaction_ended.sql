-- Fails: no setting has this name. The error is the one that `error::translate` takes for a transaction that has ended.
current_setting('queuert.transaction_ended')
