-- Checks a page of jobs: which are in none of the tables of states, or in more than one.
--
-- Parameters: $1 where the last page ended.
-- Values: `page`.
-- Answer: as of `check_without_job.sql`.
SELECT
    (array_agg(checked.id ORDER BY checked.id DESC))[1] AS last,
    count(*) AS count,
    coalesce(
        array_agg(checked.id ORDER BY checked.id) FILTER (WHERE checked.rows <> 1),
        ARRAY[]::uuid[]
    ) AS broken
FROM (
    SELECT
        paged.id,
        (SELECT count(*) FROM {schema}.ready AS state_row WHERE state_row.id = paged.id)
            + (SELECT count(*) FROM {schema}.later AS state_row WHERE state_row.id = paged.id)
            + (SELECT count(*) FROM {schema}.waiting AS state_row WHERE state_row.id = paged.id)
            + (SELECT count(*) FROM {schema}.running AS state_row WHERE state_row.id = paged.id)
            + (SELECT count(*) FROM {schema}.stopped AS state_row WHERE state_row.id = paged.id)
            + (SELECT count(*) FROM {schema}.result AS state_row WHERE state_row.id = paged.id) AS rows
    FROM (
        SELECT job.id
        FROM {schema}.job AS job
        WHERE job.id > $1
        ORDER BY job.id
        LIMIT {page}
    ) AS paged
) AS checked
