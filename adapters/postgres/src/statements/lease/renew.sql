-- Renews leases.
--
-- Parameters: $1 jobs, in order of id, $2 fences, $3 leases in microseconds, $4 the key of the process, if it has one.
-- Answer: a row per renewed lease, with its new end.
-- Locks: the rows of `running` that no other transaction has locked: they are looked for first, because an UPDATE would wait
-- for the others.
-- Reason: the process first says that it lives. A reaper that takes it for dead has that row locked while it takes the
-- leases. So either the reaper finds out that the process lives, or the leases are gone when the renewal looks for them.
WITH alive AS (
    UPDATE {schema}.process
    SET renewed_at = {now}
    WHERE key = $4::bigint
    RETURNING key
), locked AS MATERIALIZED (
    SELECT running.row_address, renewed.lease
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS renewed(id, fence, lease)
    CROSS JOIN LATERAL (
        SELECT running.ctid AS row_address
        FROM {schema}.running AS running
        WHERE running.id = renewed.id AND running.fence = renewed.fence
        FOR UPDATE SKIP LOCKED
    ) AS running
    -- This is always true, and known only when the row of the process is written.
    WHERE (SELECT count(*) FROM alive) >= 0
), clock AS MATERIALIZED (
    SELECT {now} AS now
)
UPDATE {schema}.running AS running
SET leased_until = CASE
    WHEN locked.lease > 9223372036854775807 - clock.now THEN 9223372036854775807
    ELSE clock.now + locked.lease
END
FROM locked
CROSS JOIN clock
WHERE running.ctid = locked.row_address
RETURNING running.id, running.fence, running.leased_until
