-- Changes nothing, and takes the write lock for the rest of the transaction.
DELETE FROM {prefix}job
WHERE false
