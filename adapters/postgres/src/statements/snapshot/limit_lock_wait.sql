-- Limits how long the statements of this transaction wait for a lock.
--
-- Parameters: $1 the limit, with its unit.
SELECT set_config('lock_timeout', $1::text, true)
