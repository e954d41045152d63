-- The chains of types, for `query/jobs_of_chains.sql`.
--
-- Values: `types`.
SELECT first.id
FROM unnest({types}) AS asked(id)
CROSS JOIN LATERAL (
    SELECT first.id
    FROM {schema}.job AS first
    WHERE first.type_id = asked.id AND first.chain_index = 0
    OFFSET 0
) AS first
