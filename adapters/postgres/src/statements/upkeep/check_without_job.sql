-- Checks a page of a table: which rows have no job.
--
-- Parameters: $1 where the last page ended.
-- Values: `table`, `page`.
-- Answer: the last id of the page, how many rows there were, and those that break the rule.
-- Reason: one statement, so one snapshot: a job that is being moved or deleted is seen before or after it.
SELECT
    (array_agg(checked.id ORDER BY checked.id DESC))[1] AS last,
    count(*) AS count,
    coalesce(
        array_agg(checked.id ORDER BY checked.id) FILTER (
            WHERE (SELECT job.id FROM {schema}.job AS job WHERE job.id = checked.id) IS NULL
        ),
        ARRAY[]::uuid[]
    ) AS broken
FROM (
    SELECT state_row.id
    FROM {schema}.{table} AS state_row
    WHERE state_row.id > $1
    ORDER BY state_row.id
    LIMIT {page}
) AS checked
