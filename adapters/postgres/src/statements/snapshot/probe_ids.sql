-- Finds out whether jobs exist that the snapshot of the transaction does not show: the primary key knows them.
--
-- Parameters: $1 ids that the snapshot may not show.
-- Locks: waits for a transaction that is about to create one of the jobs. At REPEATABLE READ and SERIALIZABLE a job that
-- exists is a serialization failure.
-- Reason: the caller undoes it with a savepoint.
INSERT INTO {schema}.job (
    created_at, chain_created_at, chain_index, type_id, chain_type_id, blockers, priority, keyed, id, chain_id, input
)
SELECT 0, 0, 0, 0, 0, 0, 0, false, probed.id, probed.id, ''
FROM (
    SELECT DISTINCT id
    FROM unnest($1::uuid[]) AS given(id)
) AS probed
WHERE NOT EXISTS (
    SELECT 1
    FROM {schema}.job AS job
    WHERE job.id = probed.id
)
ORDER BY probed.id
ON CONFLICT (id) DO NOTHING
