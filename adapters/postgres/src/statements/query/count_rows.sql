-- Counts the rows of tables of jobs, each table up to a limit.
--
-- Parameters: $1 types, if a condition asks for them.
-- Values: `counts`, the sum of `query/count_of_table.sql` for each table.
SELECT {counts} AS count
