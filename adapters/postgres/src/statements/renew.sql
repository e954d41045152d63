-- $1 jobs, $2 fences, $3 leases in microseconds, $4 the key of the process, if it has one. The renewed ones, with the new
-- end. The lock of a job is looked for first, because an UPDATE would wait for it.
--
-- The process says first that it lives. A reaper that takes it for dead has that row locked while it takes the leases, so
-- either the reaper finds out, or the leases are gone when the renewal looks for them.
WITH alive AS (
    UPDATE {schema}.process SET renewed_at = {now} WHERE key = $4::bigint RETURNING key
), l AS MATERIALIZED (
    SELECT x.tid, u.lease FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS u(id, fence, lease)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM {schema}.running AS r WHERE r.id = u.id AND r.fence = u.fence
        FOR UPDATE SKIP LOCKED
    ) AS x
    -- Always so, and known only when that row is written.
    WHERE (SELECT count(*) FROM alive) >= 0
), clock AS MATERIALIZED (SELECT {now} AS now)
UPDATE {schema}.running AS r
SET leased_until = CASE WHEN l.lease > 9223372036854775807 - clock.now THEN 9223372036854775807 ELSE clock.now + l.lease END
FROM l CROSS JOIN clock WHERE r.ctid = l.tid
RETURNING r.id, r.fence, r.leased_until
