-- Gives chains that go on again the deduplication keys with which they were started.
--
-- Parameters: $1 chains.
-- Answer: a row per chain that has its key again. A missing one has met an open chain with its key.
-- Locks: the keys have been locked. Their rows change, which tells a transaction with an older snapshot of the chain.
WITH reopened AS MATERIALIZED (
    SELECT job.created_at, job.type_id, job.id, job.deduplication_key
    FROM {schema}.job AS job
    WHERE job.id = ANY ($1::uuid[]) AND job.deduplication_key IS NOT NULL
), changed AS (
    UPDATE {schema}.key_lock AS key_lock
    SET chain_id = reopened.id
    FROM reopened
    WHERE key_lock.type_id = reopened.type_id AND key_lock.key = reopened.deduplication_key
)
INSERT INTO {schema}.open_key (created_at, type_id, chain_id, key)
SELECT reopened.created_at, reopened.type_id, reopened.id, reopened.deduplication_key
FROM reopened
ON CONFLICT DO NOTHING
RETURNING chain_id
