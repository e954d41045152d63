-- A source of a page: jobs that meet conditions.
--
-- Values: `value`, `conditions`, `cut`.
SELECT job.id, {value}::bigint AS value
FROM {schema}.job AS job
{conditions}
{cut}
