-- Marks a transaction in which the library writes for the caller. The mark goes with the transaction, however that ends: a
-- `COMMIT` or `ROLLBACK` of the caller's, of which neither sqlx nor this library hears, takes it away.
SET LOCAL queuert.transaction = 'open'
