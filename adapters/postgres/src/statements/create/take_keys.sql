-- Gives new chains their deduplication keys.
--
-- Parameters: $1 the time, $2 types, $3 chains, $4 keys, $5 whether the row that starters of the key lock existed before,
-- $6 whether the item excludes another one of this call that has its key; $7 excluded chains, the lists of all items one
-- after the other; $8 and $9 where the list of each item begins and ends, from one.
-- Answer: a row per chain that has its key now. A missing one has met an open chain that it does not exclude.
-- Locks: the keys have been locked. Their rows change, which tells a transaction with an older snapshot of the chain.
WITH new AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $2::integer[], $3::uuid[], $4::text[], $5::boolean[], $6::boolean[], $8::integer[], $9::integer[]
    ) AS given(type_id, chain_id, key, existed, beside, excluded_from, excluded_to)
), changed AS (
    UPDATE {schema}.key_lock AS key_lock
    SET chain_id = new.chain_id
    FROM new
    WHERE new.existed
        AND key_lock.type_id = new.type_id
        AND key_lock.key = new.key
)
INSERT INTO {schema}.open_key (created_at, type_id, chain_id, key, beside)
SELECT
    $1, new.type_id, new.chain_id, new.key,
--: if ignores_open_keys
    true OR
--: end
    new.beside OR (
        new.excluded_from <= new.excluded_to
        AND EXISTS (
            SELECT 1
            FROM {schema}.open_key AS open_key
            WHERE open_key.chain_id = ANY (($7::uuid[])[new.excluded_from:new.excluded_to])
                AND open_key.type_id = new.type_id
                AND open_key.key = new.key
        )
    )
FROM new
ON CONFLICT DO NOTHING
RETURNING chain_id
