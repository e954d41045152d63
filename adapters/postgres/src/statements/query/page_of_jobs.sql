-- A page of jobs.
--
-- Values: `sources`, statements with the columns `id` and `value`, each in the order of the page and limited; `cut`, the
-- order and the limit of the page, and `order`, the order by `page`.
-- Answer: whole jobs.
SELECT {job_columns}
FROM (
    SELECT source.id, source.value
    FROM ({sources}) AS source
    {cut}
) AS page
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.job AS job
    WHERE job.id = page.id
    OFFSET 0
) AS job
CROSS JOIN LATERAL (
    {state:job.id}
) AS state
{failure:job.id}
{order}
