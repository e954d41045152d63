-- A source of a page: the jobs that have a chain as blocker.
--
-- Values: `chain`, `value`, `conditions`, `cut`.
SELECT job.id, {value}::bigint AS value
FROM (
    SELECT DISTINCT blocker.job_id AS id
    FROM {schema}.blocker AS blocker
    WHERE blocker.chain_id = {chain}
) AS dependant
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.job AS job
    WHERE job.id = dependant.id
    OFFSET 0
) AS job
{conditions}
{cut}
