-- $1 types, $2 keys, $3 whether ended chains count, $4 not created before, $5 chains that do not count, those of all
-- items in one list; $6 the item to which each of them belongs. The newest chain that counts for each item, by its
-- place from one. Runs after the keys were locked, as a statement of its own, so that it sees what their holders left.
SELECT u.place, d.id, s.status FROM unnest($1::integer[], $2::text[], $3::boolean[], $4::bigint[])
    WITH ORDINALITY AS u(type_id, key, ended, since, place)
CROSS JOIN LATERAL (
    SELECT x.id FROM (
        (SELECT o.chain_id AS id, o.created_at FROM {schema}.open_key AS o
         WHERE NOT u.ended AND o.type_id = u.type_id AND o.key = u.key AND o.created_at >= u.since
         AND NOT EXISTS (SELECT 1 FROM unnest($5::uuid[], $6::bigint[]) AS n(id, place) WHERE n.id = o.chain_id AND n.place = u.place)
         ORDER BY o.created_at DESC, o.chain_id DESC LIMIT 1)
        UNION ALL
        (SELECT j.id, j.created_at FROM {schema}.job AS j
         WHERE u.ended AND j.type_id = u.type_id AND j.dedup_key = u.key AND j.dedup_key IS NOT NULL AND j.created_at >= u.since
         AND NOT EXISTS (SELECT 1 FROM unnest($5::uuid[], $6::bigint[]) AS n(id, place) WHERE n.id = j.id AND n.place = u.place)
         ORDER BY j.created_at DESC, j.id DESC LIMIT 1)
    ) AS x LIMIT 1
) AS d
JOIN {schema}.job AS f ON f.id = d.id CROSS JOIN {latest} CROSS JOIN {state}
