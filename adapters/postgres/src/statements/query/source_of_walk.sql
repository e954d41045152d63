-- A source of a page: the rows of a merge, up to where a walk has found enough of them, that have what is asked for.
--
-- Values: `merge`, `cut` (the order of the merge, without a limit), `name`, `joined` and `wanted` as in `walk.sql`, `limit`.
-- Reason: there is no order outside. The inside has one, and a sort around it would ask for all of it.
SELECT {name}.id, {name}.created_at AS value
FROM (
    SELECT *
    FROM ({merge}) AS merged
    {cut}
) AS {name}
{joined}
WHERE {wanted}
LIMIT {limit}
