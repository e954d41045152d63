-- $1 types, $2 keys, $3 since when ended chains count (null: they do not), $4 chains that do not count, the lists of all
-- items one after the other; $5 and $6 where the list of each item begins and ends, from one. The newest chain that counts
-- for each item, by its place from one. Runs after the keys were locked, as a statement of its own, so that it sees what
-- their holders left.
SELECT u.place, d.id, s.status FROM unnest($1::integer[], $2::text[], $3::bigint[], $5::integer[], $6::integer[])
    WITH ORDINALITY AS u(type_id, key, since, left_out_from, left_out_to, place)
CROSS JOIN LATERAL (
    SELECT x.id FROM (
        (SELECT o.chain_id AS id, o.created_at FROM {schema}.open_key AS o
         WHERE o.type_id = u.type_id AND o.key = u.key AND NOT o.beside
         AND o.chain_id <> ALL (($4::uuid[])[u.left_out_from:u.left_out_to]))
        UNION ALL
        (SELECT o.chain_id, o.created_at FROM {schema}.open_key AS o
         WHERE o.type_id = u.type_id AND o.key = u.key AND o.beside
         AND o.chain_id <> ALL (($4::uuid[])[u.left_out_from:u.left_out_to])
         ORDER BY o.created_at DESC, o.chain_id DESC LIMIT 1)
        UNION ALL
        (SELECT j.id, j.created_at FROM {schema}.job AS j
         WHERE j.type_id = u.type_id AND j.dedup_key = u.key AND j.dedup_key IS NOT NULL AND j.created_at >= u.since
         AND j.id <> ALL (($4::uuid[])[u.left_out_from:u.left_out_to])
         ORDER BY j.created_at DESC, j.id DESC LIMIT 1)
    ) AS x ORDER BY x.created_at DESC, x.id DESC LIMIT 1
) AS d
JOIN {schema}.job AS f ON f.id = d.id CROSS JOIN {latest} CROSS JOIN {state}
