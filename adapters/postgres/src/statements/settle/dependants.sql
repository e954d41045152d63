-- The jobs that wait for chains, or have waited for them.
--
-- Parameters: $1 chains, whose locks the caller has: no job can become one of them meanwhile.
-- Answer: a row per chain and job: how many of the job's blockers are this chain, whether its row of `waiting` is locked now,
-- and whether it has such a row.
-- Locks: the rows of `waiting`, in order of id. A row that another transaction has locked is waited for, or (`skips`) left out.
WITH edge AS MATERIALIZED (
    SELECT blocker.chain_id, blocker.job_id, count(*)::integer AS count
    FROM {schema}.blocker AS blocker
    WHERE blocker.chain_id = ANY ($1::uuid[])
    GROUP BY blocker.chain_id, blocker.job_id
), locked AS MATERIALIZED (
    SELECT waiting.id
    FROM {schema}.waiting AS waiting
    WHERE waiting.id = ANY (ARRAY(SELECT DISTINCT job_id FROM edge))
    ORDER BY waiting.id
    FOR UPDATE
--: if skips
    SKIP LOCKED
--: end
)
SELECT
    edge.chain_id,
    edge.job_id,
    edge.count,
    edge.job_id IN (SELECT locked.id FROM locked) AS is_locked,
    EXISTS (
        SELECT 1
        FROM {schema}.waiting AS waiting
        WHERE waiting.id = edge.job_id
    ) AS is_waiting
FROM edge
