-- Whether the transaction has the mark of one in which the library writes for the caller. The mark goes with the
-- transaction, however that ends.
current_setting('queuert.transaction', true) = 'open'
