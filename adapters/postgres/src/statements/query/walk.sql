-- One step of a walk through a merge by time: how many rows there were, how many of them are wanted, and where the step
-- ended.
--
-- Values: `merge`, the rows of the merge; `cut`, the size of the step; `name`, the alias of a row of the merge; `joined`,
-- what is joined to it; `wanted`, the condition; `last`, the aggregate that finds the end (min or max).
SELECT
    count(*) AS read,
    count(*) FILTER (WHERE {wanted}) AS wanted,
    {last}({name}.created_at) AS reached
FROM (
    SELECT *
    FROM ({merge}) AS merged
    {cut}
) AS {name}
{joined}
