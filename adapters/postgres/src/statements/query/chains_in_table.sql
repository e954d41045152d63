-- A source of a page: all chains whose latest job is in a small table.
--
-- Values: `table`, `conditions` on `first`, `cut`.
SELECT first.id, first.created_at AS value
FROM {schema}.{table} AS state_row
CROSS JOIN LATERAL (
    SELECT job.chain_id AS id, job.chain_created_at AS created_at, job.chain_type_id AS type_id
    FROM {schema}.job AS job
    WHERE job.id = state_row.id
    OFFSET 0
) AS first
{conditions}
{cut}
