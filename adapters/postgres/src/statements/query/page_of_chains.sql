-- A page of chains.
--
-- Values: `sources`, statements with the columns `id` (of the first job) and `value`, each in the order of the page and
-- limited; `cut`, the order and the limit of the page, and `order`, the order by `page`.
-- Answer: whole chains.
SELECT {chain_columns}
FROM (
    SELECT source.id, source.value
    FROM ({sources}) AS source
    {cut}
) AS page
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.job AS first
    WHERE first.id = page.id
    OFFSET 0
) AS first
{latest_job:first.id}
CROSS JOIN LATERAL (
    {state:latest.id}
) AS state
{failure:latest.id}
{order}
