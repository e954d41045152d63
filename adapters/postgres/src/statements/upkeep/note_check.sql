-- Notes that all rows have been checked.
--
-- Parameters: $1 worker.
-- Locks: the row of the upkeep. One that another transaction has locked is left alone.
UPDATE {schema}.maintainer
SET checked_at = {now}
WHERE single = (
    SELECT maintainer.single
    FROM {schema}.maintainer AS maintainer
    WHERE maintainer.single AND maintainer.owner = $1
    FOR UPDATE SKIP LOCKED
)
