-- Whole chains by their ids.
--
-- Parameters: $1 chains.
-- Answer: a row per chain that exists, in the order given, also for a chain whose latest job has lost its state.
SELECT {chain_columns}
FROM unnest($1::uuid[]) WITH ORDINALITY AS asked(id, place)
JOIN {schema}.job AS first
    ON first.id = asked.id AND first.chain_index = 0
{latest_job:first.id}
LEFT JOIN LATERAL (
    {state:latest.id}
) AS state
    ON true
{failure:latest.id}
ORDER BY asked.place
