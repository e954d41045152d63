-- A part of a merge that goes on until the time changes.
--
-- Values: `merge`, `cut`.
(
    SELECT *
    FROM ({merge}) AS merged
    {cut}
)
