-- A condition: no job has the chain `first` as blocker. A scalar subquery, because a join or `EXISTS` might be turned into
-- one that reads the table from end to end.
(
    SELECT 1
    FROM {schema}.blocker AS blocker
    WHERE blocker.chain_id = first.id
    LIMIT 1
) IS NULL
