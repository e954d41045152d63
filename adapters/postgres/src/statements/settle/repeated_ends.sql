-- What ends that were written before did beside completing their jobs.
--
-- Parameters: $1 completed jobs.
-- Answer: a row per job that one of the ends made pending; and a row with nulls per end that continued its chain with a job
-- that had to wait.
WITH ended AS MATERIALIZED (
    SELECT asked.id, job.chain_id, job.chain_index, result.final
    FROM unnest($1::uuid[]) AS asked(id)
    CROSS JOIN LATERAL (
        SELECT result.final
        FROM {schema}.result AS result
        WHERE result.id = asked.id
        OFFSET 0
    ) AS result
    CROSS JOIN LATERAL (
        SELECT job.chain_id, job.chain_index
        FROM {schema}.job AS job
        WHERE job.id = asked.id
        OFFSET 0
    ) AS job
)
SELECT DISTINCT
    ended.id AS ended_id, unblocked.id AS unblocked_id, unblocked.chain_id AS unblocked_chain_id,
    unblocked.type_id AS unblocked_type_id
FROM ended
CROSS JOIN LATERAL (
    SELECT blocker.job_id
    FROM {schema}.blocker AS blocker
    WHERE blocker.chain_id = ended.chain_id AND blocker.ended_last
    OFFSET 0
) AS blocker
CROSS JOIN LATERAL (
    SELECT job.id, job.chain_id, job.type_id
    FROM {schema}.job AS job
    WHERE job.id = blocker.job_id
    OFFSET 0
) AS unblocked
WHERE ended.final
UNION ALL
SELECT ended.id, NULL::uuid, NULL::uuid, NULL::integer
FROM ended
CROSS JOIN LATERAL (
    SELECT next.id
    FROM {schema}.job AS next
    WHERE next.chain_id = ended.chain_id AND next.chain_index = ended.chain_index + 1 AND next.chain_index > 0
    OFFSET 0
) AS next
WHERE NOT ended.final
    AND (
        EXISTS (SELECT FROM {schema}.waiting AS waiting WHERE waiting.id = next.id)
        OR EXISTS (SELECT FROM {schema}.blocker AS blocker WHERE blocker.job_id = next.id AND blocker.ended_last)
    )
ORDER BY 1, 2
