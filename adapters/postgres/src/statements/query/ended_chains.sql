-- A source of a page: ended chains by time.
--
-- Values: `merge`, the last jobs of the chains; `conditions`; `cut`.
-- Reason: the ids of the chains are not in the index. Chains of one instant are sorted after they were looked up.
SELECT first.id, last.created_at AS value
FROM ({merge}) AS last
{first_of_last}
{conditions}
{cut}
