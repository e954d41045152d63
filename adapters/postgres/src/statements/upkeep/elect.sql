-- Makes the upkeep a worker's, or keeps it so, unless another worker has it.
--
-- Parameters: $1 worker, $2 the duration of the lease.
-- Answer: one row if the worker has the upkeep: the time, and when all rows were last checked.
-- Locks: the row, until the transaction ends. One that another transaction has locked is left alone.
UPDATE {schema}.maintainer
SET owner = $1, leased_until = {now} + $2::bigint
WHERE single = (
    SELECT maintainer.single
    FROM {schema}.maintainer AS maintainer
    WHERE maintainer.single AND (maintainer.owner = $1 OR maintainer.leased_until <= {now})
    FOR UPDATE SKIP LOCKED
)
RETURNING {now} AS now, checked_at
