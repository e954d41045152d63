-- Deletes the rows that starters of the keys of chains lock. They are created again when they are needed.
--
-- Parameters: $1 chains, whose jobs still exist.
-- Locks: a row that another transaction has locked stays, because a deletion must not wait for starters.
DELETE FROM {schema}.key_lock
WHERE ctid = ANY (ARRAY(
    SELECT locked.row_address
    FROM {schema}.job AS first
    CROSS JOIN LATERAL (
        SELECT key_lock.ctid AS row_address
        FROM {schema}.key_lock AS key_lock
        WHERE key_lock.type_id = first.type_id AND key_lock.key = first.deduplication_key
        FOR UPDATE SKIP LOCKED
    ) AS locked
    WHERE first.id = ANY ($1::uuid[]) AND first.chain_index = 0 AND first.deduplication_key IS NOT NULL
))
