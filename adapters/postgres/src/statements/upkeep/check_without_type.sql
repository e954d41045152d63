-- Checks a page of jobs: which have a type that does not exist, or are the first of a chain of another type.
--
-- Parameters: $1 where the last page ended.
-- Values: `page`.
-- Answer: as of `check_without_job.sql`.
SELECT
    (array_agg(checked.id ORDER BY checked.id DESC))[1] AS last,
    count(*) AS count,
    coalesce(
        array_agg(checked.id ORDER BY checked.id) FILTER (
            WHERE (checked.chain_index = 0 AND checked.type_id <> checked.chain_type_id)
                OR (SELECT job_type.id FROM {schema}.job_type AS job_type WHERE job_type.id = checked.type_id) IS NULL
                OR (SELECT job_type.id FROM {schema}.job_type AS job_type WHERE job_type.id = checked.chain_type_id) IS NULL
        ),
        ARRAY[]::uuid[]
    ) AS broken
FROM (
    SELECT job.id, job.chain_index, job.type_id, job.chain_type_id
    FROM {schema}.job AS job
    WHERE job.id > $1
    ORDER BY job.id
    LIMIT {page}
) AS checked
