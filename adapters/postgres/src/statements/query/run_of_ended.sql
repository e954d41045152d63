-- A run of a merge: the ended chains of one type by the time of their creation, as the last jobs of these chains.
--
-- Values: `table`, `ended` (the condition of the index), `type`, `conditions`, `cut`.
SELECT last.id, last.chain_created_at AS created_at
FROM {schema}.{table} AS last
WHERE {ended}
    AND last.chain_type_id = {type}
    {conditions}
{cut}
