-- Says whether some lease has expired.
--
-- Parameters: $1 types, $2 jobs that are left alone.
-- Answer: one row if there is one.
-- Locks: none.
SELECT 1
FROM {schema}.running AS running
WHERE running.leased_until <= {now}
    AND running.id <> ALL ($2::uuid[])
    AND {may_be_reaped}
LIMIT 1
