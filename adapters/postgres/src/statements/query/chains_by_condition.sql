-- A source of a page: chains that meet conditions on their first jobs `first` or on the ids of their latest ones.
--
-- Values: `conditions`, `cut`.
SELECT first.id, first.created_at AS value
FROM {schema}.job AS first
{latest_of_first}
{conditions}
{cut}
