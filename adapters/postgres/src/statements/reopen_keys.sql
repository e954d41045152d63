-- $1 chains that go on again. Those that have their keys again: one that is missing has met an open chain with its key.
WITH opened AS MATERIALIZED (
    SELECT j.created_at, j.type_id, j.id, j.dedup_key FROM {schema}.job AS j
    WHERE j.id = ANY ($1::uuid[]) AND j.dedup_key IS NOT NULL
), changed AS (
    UPDATE {schema}.key_lock AS k SET chain_id = o.id
    FROM opened AS o WHERE k.type_id = o.type_id AND k.key = o.dedup_key
)
INSERT INTO {schema}.open_key (created_at, type_id, chain_id, key)
SELECT o.created_at, o.type_id, o.id, o.dedup_key FROM opened AS o
ON CONFLICT DO NOTHING RETURNING chain_id
