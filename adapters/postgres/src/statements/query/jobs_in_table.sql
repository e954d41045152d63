-- A source of a page: all jobs of a small table that meet conditions.
--
-- Values: `table`, `state_conditions` on `state_row`, `conditions` on `job`, `cut`.
SELECT job.id, job.created_at AS value
FROM (
    SELECT state_row.id
    FROM {schema}.{table} AS state_row
    WHERE {state_conditions}
) AS state_row
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.job AS job
    WHERE job.id = state_row.id
    OFFSET 0
) AS job
{conditions}
{cut}
