-- The newest chain that counts for each new item with a deduplication key.
--
-- Parameters: $1 types, $2 keys, $3 since when ended chains count (null: they do not), $4 chains that do not count, the
-- lists of all items one after the other; $5 and $6 where the list of each item begins and ends, from one.
-- Answer: a row per item that has a duplicate: its place, from one, and the chain with its status.
-- Locks: none. It runs after the keys were locked, as a statement of its own, so that it sees what their holders left.
SELECT item.place, duplicate.id, state.status
FROM unnest($1::integer[], $2::text[], $3::bigint[], $5::integer[], $6::integer[])
    WITH ORDINALITY AS item(type_id, key, since, excluded_from, excluded_to, place)
CROSS JOIN LATERAL (
    SELECT candidate.id
    FROM (
        (
            SELECT open_key.chain_id AS id, open_key.created_at
            FROM {schema}.open_key AS open_key
            WHERE open_key.type_id = item.type_id
                AND open_key.key = item.key
                AND NOT open_key.beside
                AND open_key.chain_id <> ALL (($4::uuid[])[item.excluded_from:item.excluded_to])
        )
        UNION ALL
        (
            SELECT open_key.chain_id, open_key.created_at
            FROM {schema}.open_key AS open_key
            WHERE open_key.type_id = item.type_id
                AND open_key.key = item.key
                AND open_key.beside
                AND open_key.chain_id <> ALL (($4::uuid[])[item.excluded_from:item.excluded_to])
            ORDER BY open_key.created_at DESC, open_key.chain_id DESC
            LIMIT 1
        )
        UNION ALL
        (
            SELECT job.id, job.created_at
            FROM {schema}.job AS job
            WHERE job.type_id = item.type_id
                AND job.deduplication_key = item.key
                AND job.deduplication_key IS NOT NULL
                AND job.created_at >= item.since
                AND job.id <> ALL (($4::uuid[])[item.excluded_from:item.excluded_to])
            ORDER BY job.created_at DESC, job.id DESC
            LIMIT 1
        )
    ) AS candidate
    ORDER BY candidate.created_at DESC, candidate.id DESC
    LIMIT 1
) AS duplicate
JOIN {schema}.job AS first
    ON first.id = duplicate.id
{latest_job:first.id}
CROSS JOIN LATERAL (
    {state:latest.id}
) AS state
