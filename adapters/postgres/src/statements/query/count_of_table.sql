-- Counts the rows of one table, up to a limit. A part of `query/count_rows.sql`.
--
-- Values: `table`, `conditions` on `state_row`, `limit`.
(
    SELECT count(*)
    FROM (
        SELECT 1
        FROM {schema}.{table} AS state_row
        WHERE {conditions}
        LIMIT {limit}
    ) AS counted
)
