-- Checks a page of a table: which rows have another type than their job has.
--
-- Parameters: $1 where the last page ended.
-- Values: `table`, `page`.
-- Answer: as of `check_without_job.sql`.
SELECT
    (array_agg(checked.id ORDER BY checked.id DESC))[1] AS last,
    count(*) AS count,
    coalesce(
        array_agg(checked.id ORDER BY checked.id) FILTER (
            WHERE (SELECT job.type_id FROM {schema}.job AS job WHERE job.id = checked.id) <> checked.type_id
        ),
        ARRAY[]::uuid[]
    ) AS broken
FROM (
    SELECT state_row.id, state_row.type_id
    FROM {schema}.{table} AS state_row
    WHERE state_row.id > $1
    ORDER BY state_row.id
    LIMIT {page}
) AS checked
