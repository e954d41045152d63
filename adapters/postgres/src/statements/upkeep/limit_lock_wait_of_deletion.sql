-- Limits how long a deletion of old chains waits for a lock, because it must not hold up other transactions.
SET LOCAL lock_timeout = '200ms'
