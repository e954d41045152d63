-- The numbers of all types, with their names.
--
-- Answer: a row per number; the name is null for a number that only rows of jobs have.
-- Reason: lists walk through one index range per type, so a row with a number that the table of types does not have would
-- be in no list. Such numbers are looked for in the indexes of the lists, from each number to the next larger one.
WITH RECURSIVE first_jobs(id) AS (
    (
        SELECT job.type_id
        FROM {schema}.job AS job
        WHERE job.chain_index = 0
        ORDER BY job.type_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT job.type_id
        FROM {schema}.job AS job
        WHERE job.chain_index = 0 AND job.type_id > smaller.id
        ORDER BY job.type_id
        LIMIT 1
    )
    FROM first_jobs AS smaller
    WHERE smaller.id IS NOT NULL
), next_jobs(id) AS (
    (
        SELECT job.type_id
        FROM {schema}.job AS job
        WHERE job.chain_index > 0
        ORDER BY job.type_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT job.type_id
        FROM {schema}.job AS job
        WHERE job.chain_index > 0 AND job.type_id > smaller.id
        ORDER BY job.type_id
        LIMIT 1
    )
    FROM next_jobs AS smaller
    WHERE smaller.id IS NOT NULL
), completed(id) AS (
    (
        SELECT result.chain_type_id
        FROM {schema}.result AS result
        WHERE result.final
        ORDER BY result.chain_type_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT result.chain_type_id
        FROM {schema}.result AS result
        WHERE result.final AND result.chain_type_id > smaller.id
        ORDER BY result.chain_type_id
        LIMIT 1
    )
    FROM completed AS smaller
    WHERE smaller.id IS NOT NULL
), dead(id) AS (
    (
        SELECT stopped.chain_type_id
        FROM {schema}.stopped AS stopped
        WHERE stopped.status = 4
        ORDER BY stopped.chain_type_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT stopped.chain_type_id
        FROM {schema}.stopped AS stopped
        WHERE stopped.status = 4 AND stopped.chain_type_id > smaller.id
        ORDER BY stopped.chain_type_id
        LIMIT 1
    )
    FROM dead AS smaller
    WHERE smaller.id IS NOT NULL
), cancelled(id) AS (
    (
        SELECT stopped.chain_type_id
        FROM {schema}.stopped AS stopped
        WHERE stopped.status = 5
        ORDER BY stopped.chain_type_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT stopped.chain_type_id
        FROM {schema}.stopped AS stopped
        WHERE stopped.status = 5 AND stopped.chain_type_id > smaller.id
        ORDER BY stopped.chain_type_id
        LIMIT 1
    )
    FROM cancelled AS smaller
    WHERE smaller.id IS NOT NULL
)
SELECT job_type.id, job_type.name
FROM {schema}.job_type AS job_type
UNION ALL
SELECT used.id, NULL
FROM (
    SELECT id FROM first_jobs
    UNION
    SELECT id FROM next_jobs
    UNION
    SELECT id FROM completed
    UNION
    SELECT id FROM dead
    UNION
    SELECT id FROM cancelled
) AS used
WHERE used.id IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.job_type AS job_type
        WHERE job_type.id = used.id
    )
