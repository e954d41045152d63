-- $1 chains. These, and all chains that one of them waits for, directly or through others: each once, and what each of them
-- waits for is read once. A dead or cancelled job counts as waiting, because a retry would make it so.
WITH RECURSIVE way(id) AS (
    SELECT u.id FROM unnest($1::uuid[]) AS u(id)
    UNION
    SELECT b.chain_id FROM way AS c {ahead} AS b
)
SELECT id FROM way ORDER BY id
