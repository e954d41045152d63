-- Extends the leases that are still held, and returns them.
--
-- ?1: a JSON array of [job id, fence, time until which the lease lasts].
UPDATE {prefix}job
SET lease_until = renewal.lease_until
FROM (
    SELECT
        unhex(value ->> 0) AS id,
        unhex(value ->> 1) AS fence,
        value ->> 2 AS lease_until
    FROM json_each(?1)
) AS renewal
WHERE {prefix}job.id = renewal.id
    AND status = 2
    AND {prefix}job.fence = renewal.fence
RETURNING id, fence
