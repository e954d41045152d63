-- Limits how long the session may be idle in this transaction: until the lease ends, or for five seconds if that is
-- later. A limit that the session has already, of its role for example, stays if it is shorter.
--
-- Argument: the end of the lease.
-- Reason: for transactions of attempts that have written the end of their job, or locked its row, and have nothing left
-- to do but to commit. A process that is frozen or vanishes before the commit would keep the job from all others,
-- whatever its lease says. The functions in `0001_schema.sql` do the same.
set_config(
    'idle_in_transaction_session_timeout',
    least(
        greatest(({argument} - {now}) / 1000, 5000),
        2147483647,
        nullif((extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0)
    )::text,
    true
)
