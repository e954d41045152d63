-- $1 jobs, $2 fences, $3 leases in microseconds. The renewed ones, with the new end. The lock is looked for first,
-- because an UPDATE would wait for it.
WITH l AS MATERIALIZED (
    SELECT x.tid, u.lease FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS u(id, fence, lease)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM {schema}.running AS r WHERE r.id = u.id AND r.fence = u.fence
        FOR UPDATE SKIP LOCKED
    ) AS x
), clock AS MATERIALIZED (SELECT {now} AS now)
UPDATE {schema}.running AS r
SET leased_until = CASE WHEN l.lease > 9223372036854775807 - clock.now THEN 9223372036854775807 ELSE clock.now + l.lease END
FROM l CROSS JOIN clock WHERE r.ctid = l.tid
RETURNING r.id, r.fence, r.leased_until
