-- $1 completed jobs. What their ends did beside completing them: a row per job that one of them made pending, and one with
-- nulls per end that continued its chain with a job that had to wait.
WITH asked AS MATERIALIZED (
    SELECT u.id, j.chain_id, j.chain_index, r.final
    FROM unnest($1::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT r.final FROM {schema}.result AS r WHERE r.id = u.id OFFSET 0) AS r
    CROSS JOIN LATERAL (SELECT j.chain_id, j.chain_index FROM {schema}.job AS j WHERE j.id = u.id OFFSET 0) AS j
)
SELECT DISTINCT a.id, d.id, d.chain_id, d.type_id
FROM asked AS a
CROSS JOIN LATERAL (
    SELECT b.job_id FROM {schema}.blocker AS b WHERE b.chain_id = a.chain_id AND b.ended_last OFFSET 0
) AS b
CROSS JOIN LATERAL (SELECT j.id, j.chain_id, j.type_id FROM {schema}.job AS j WHERE j.id = b.job_id OFFSET 0) AS d
WHERE a.final
UNION ALL
SELECT a.id, NULL::uuid, NULL::uuid, NULL::integer
FROM asked AS a
CROSS JOIN LATERAL (
    SELECT n.id FROM {schema}.job AS n
    WHERE n.chain_id = a.chain_id AND n.chain_index = a.chain_index + 1 AND n.chain_index > 0 OFFSET 0
) AS n
WHERE NOT a.final AND (
    EXISTS (SELECT FROM {schema}.waiting AS w WHERE w.id = n.id)
    OR EXISTS (SELECT FROM {schema}.blocker AS b WHERE b.job_id = n.id AND b.ended_last)
)
ORDER BY 1, 2
