-- $1 the time, $2 types, $3 chains, $4 keys, $5 whether the row that starters of the key lock was there before, $6 whether
-- the item has left out another one of this call that has its key; $7 chains that were left out, the lists of all items one
-- after the other; $8 and $9 where the list of each item begins and ends, from one. The chains that have their keys now: one
-- that is missing has met an open chain that it has not left out.
WITH new AS MATERIALIZED (
    SELECT * FROM unnest($2::integer[], $3::uuid[], $4::text[], $5::boolean[], $6::boolean[], $8::integer[], $9::integer[])
        AS u(type_id, chain_id, key, known, beside, left_out_from, left_out_to)
), changed AS (
    UPDATE {schema}.key_lock AS k SET chain_id = n.chain_id
    FROM new AS n WHERE n.known AND k.type_id = n.type_id AND k.key = n.key
)
INSERT INTO {schema}.open_key (created_at, type_id, chain_id, key, beside)
SELECT $1, n.type_id, n.chain_id, n.key, {sabotaged} OR n.beside OR (n.left_out_from <= n.left_out_to AND EXISTS (
    SELECT 1 FROM {schema}.open_key AS o WHERE o.chain_id = ANY (($7::uuid[])[n.left_out_from:n.left_out_to])
    AND o.type_id = n.type_id AND o.key = n.key
)) FROM new AS n
ON CONFLICT DO NOTHING RETURNING chain_id
