-- The newest open chain of each key.
--
-- Parameters: $1 types, $2 keys.
-- Answer: a row per key that has an open chain.
-- Locks: none. It runs after the keys were locked, as a statement of its own, so that it sees what their holders left.
SELECT asked.type_id, asked.key, holder.chain_id
FROM unnest($1::integer[], $2::text[]) AS asked(type_id, key)
CROSS JOIN LATERAL (
    SELECT candidate.chain_id
    FROM (
        SELECT open_key.chain_id, open_key.created_at
        FROM {schema}.open_key AS open_key
        WHERE open_key.type_id = asked.type_id AND open_key.key = asked.key AND NOT open_key.beside
        UNION ALL
        SELECT open_key.chain_id, open_key.created_at
        FROM {schema}.open_key AS open_key
        WHERE open_key.type_id = asked.type_id AND open_key.key = asked.key AND open_key.beside
    ) AS candidate
    ORDER BY candidate.created_at DESC, candidate.chain_id DESC
    LIMIT 1
) AS holder
