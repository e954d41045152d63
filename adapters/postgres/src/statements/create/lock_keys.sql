-- Locks deduplication keys.
--
-- Parameters: $1 types, $2 keys.
-- Answer: a row per key whose row did not exist.
-- Locks: the rows of the keys, in order. The update changes and writes nothing, but a row that exists is locked for it.
INSERT INTO {schema}.key_lock AS key_lock (type_id, key)
SELECT type_id, key
FROM unnest($1::integer[], $2::text[]) AS given(type_id, key)
ORDER BY 1, 2
ON CONFLICT (type_id, key) DO UPDATE SET key = excluded.key WHERE false
RETURNING key_lock.type_id, key_lock.key
