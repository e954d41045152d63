-- Deletes the rows of dead processes whose leases are all taken.
--
-- Parameters: $1 keys.
DELETE FROM {schema}.process AS process
WHERE process.key = ANY ($1::bigint[])
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.running AS running
        WHERE running.owner = ANY (process.workers)
    )
