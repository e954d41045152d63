-- The first half of a claim, for one type: its first jobs. A claim of several types merges one such query per type, with
-- `UNION ALL`, an order by `rank, id` and a limit.
--
-- {type}: the parameter that has the type.
--
-- SQLite merges ordered queries lazily: each is a walk over the index of the queue that ends when the limit of the claim is
-- reached. So a claim costs the jobs that it takes, plus one look per type.
SELECT
    {claim_columns},
    rank
FROM {prefix}job INDEXED BY {prefix}job_queue
WHERE status = 1
    AND due = 1
    AND type = {type}
