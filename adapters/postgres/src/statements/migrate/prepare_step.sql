-- The beginning of a try to apply a step, in its transaction: one message.
--
-- Values: `idle_limit` in milliseconds, `lock_wait` in milliseconds, `longest_deadlock_timeout` in milliseconds.
-- Locks: the ledger, so that one process applies a step and the others wait for it. A try waits for each lock for a short
-- time, or (`waits_long`) for longer than `deadlock_timeout`: the server cancels an autovacuum that is in the way of a lock
-- only when a session has waited for so long. Both settings are in milliseconds.
-- Reason: a process that is frozen or vanishes between two statements of a step has the ledger locked, and perhaps tables
-- that all processes use. So the server ends its session; a limit that the session has already stays if it is shorter. The
-- messages are turned off because it is no news that the ledger exists.
SET LOCAL client_min_messages = warning;
SELECT set_config('idle_in_transaction_session_timeout', '{idle_limit}', true)
WHERE current_setting('idle_in_transaction_session_timeout')::interval
    NOT BETWEEN interval '1 millisecond' AND interval '{idle_limit} milliseconds';
--: if waits_long
SELECT set_config(
    'lock_timeout',
    ({lock_wait} + CASE
        WHEN settings.setting::bigint <= {longest_deadlock_timeout} THEN settings.setting::bigint
        ELSE 0
    END)::text,
    true
)
FROM pg_settings AS settings
WHERE settings.name = 'deadlock_timeout';
--: else
SET LOCAL lock_timeout = '{lock_wait}ms';
--: end
--: if creates_schema
-- Only then: `IF NOT EXISTS` asks for the right to create a schema even if there is nothing to do.
CREATE SCHEMA IF NOT EXISTS {schema};
--: end
{ledger};
LOCK TABLE {schema}.migration IN ACCESS EXCLUSIVE MODE
