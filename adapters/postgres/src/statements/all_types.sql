-- The numbers of all types, with their names. Lists walk through one index range per type, so a row with a number that the
-- table of types does not have would be in no list: such numbers are looked for in the indexes of the lists, from each
-- number to the next larger one, and come without a name.
WITH RECURSIVE first(id) AS (
    (SELECT j.type_id FROM {schema}.job AS j WHERE j.chain_index = 0 ORDER BY j.type_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.type_id FROM {schema}.job AS j WHERE j.chain_index = 0 AND j.type_id > x.id
        ORDER BY j.type_id LIMIT 1)
    FROM first AS x WHERE x.id IS NOT NULL
), next(id) AS (
    (SELECT j.type_id FROM {schema}.job AS j WHERE j.chain_index > 0 ORDER BY j.type_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.type_id FROM {schema}.job AS j WHERE j.chain_index > 0 AND j.type_id > x.id
        ORDER BY j.type_id LIMIT 1)
    FROM next AS x WHERE x.id IS NOT NULL
), completed(id) AS (
    (SELECT r.chain_type_id FROM {schema}.result AS r WHERE r.final ORDER BY r.chain_type_id LIMIT 1)
    UNION ALL
    SELECT (SELECT r.chain_type_id FROM {schema}.result AS r WHERE r.final AND r.chain_type_id > x.id
        ORDER BY r.chain_type_id LIMIT 1)
    FROM completed AS x WHERE x.id IS NOT NULL
), dead(id) AS (
    (SELECT s.chain_type_id FROM {schema}.stopped AS s WHERE s.status = 4 ORDER BY s.chain_type_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.chain_type_id FROM {schema}.stopped AS s WHERE s.status = 4 AND s.chain_type_id > x.id
        ORDER BY s.chain_type_id LIMIT 1)
    FROM dead AS x WHERE x.id IS NOT NULL
), cancelled(id) AS (
    (SELECT s.chain_type_id FROM {schema}.stopped AS s WHERE s.status = 5 ORDER BY s.chain_type_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.chain_type_id FROM {schema}.stopped AS s WHERE s.status = 5 AND s.chain_type_id > x.id
        ORDER BY s.chain_type_id LIMIT 1)
    FROM cancelled AS x WHERE x.id IS NOT NULL
)
SELECT t.id, t.name FROM {schema}.job_type AS t
UNION ALL
SELECT u.id, NULL FROM (
    SELECT id FROM first UNION SELECT id FROM next UNION SELECT id FROM completed UNION SELECT id FROM dead
    UNION SELECT id FROM cancelled
) AS u
WHERE u.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {schema}.job_type AS t WHERE t.id = u.id)
