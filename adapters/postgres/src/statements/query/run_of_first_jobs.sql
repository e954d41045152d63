-- A run of a merge: the first jobs of the chains of one type by time.
--
-- Values: `type`, `conditions`, `cut`.
SELECT first.id, first.created_at
FROM {schema}.job AS first
WHERE first.chain_index = 0
    AND first.type_id = {type}
    {conditions}
{cut}
