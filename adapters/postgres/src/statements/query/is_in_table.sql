-- A part of the condition that a job is in one of some statuses: whether one table has it.
--
-- Values: `table`, `id`, `conditions`.
SELECT 1
FROM {schema}.{table} AS state_row
WHERE state_row.id = {id}
    {conditions}
