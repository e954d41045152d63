-- Counts the chains of types, up to a limit.
--
-- Parameters: $1 types.
-- Values: `limit`.
SELECT count(*) AS count
FROM (
    SELECT 1
    FROM unnest($1::integer[]) AS asked(id)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM {schema}.job AS first
        WHERE first.type_id = asked.id AND first.chain_index = 0
        LIMIT {limit}
    ) AS first
    LIMIT {limit}
) AS counted
