-- $1 chains. All chains that one of them is, or waits directly or through others for: (root, chain). A dead or
-- cancelled job counts as waiting, because a retry would make it so.
WITH RECURSIVE way(root, id) AS (
    SELECT u.id, u.id FROM unnest($1::uuid[]) AS u(id)
    UNION
    SELECT way.root, b.chain_id FROM way
    CROSS JOIN LATERAL (SELECT way.id) AS c
    CROSS JOIN LATERAL (SELECT {latest_id} AS id) AS l
    JOIN {schema}.blocker AS b ON b.job_id = l.id
    WHERE (EXISTS (SELECT 1 FROM {schema}.waiting AS w WHERE w.id = l.id)
        OR EXISTS (SELECT 1 FROM {schema}.stopped AS s WHERE s.id = l.id))
)
SELECT root, id FROM way
