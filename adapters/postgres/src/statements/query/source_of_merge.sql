-- A source of a page: the first rows of a merge by time.
--
-- Values: `merge`, `cut`.
SELECT id, created_at AS value
FROM ({merge}) AS merged
{cut}
