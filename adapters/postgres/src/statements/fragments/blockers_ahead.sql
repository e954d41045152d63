-- Joins the chains for which a chain waits, or would wait if it were retried, as `blocker.chain_id`.
--
-- Argument: the id of the chain.
-- Reason: everything is looked up chain by chain (`OFFSET 0`), whatever the planner believes that the tables hold.
CROSS JOIN LATERAL (
    SELECT {latest_id:{argument}} AS id
    OFFSET 0
) AS latest
CROSS JOIN LATERAL (
    SELECT 1
    FROM {schema}.waiting AS waiting
    WHERE waiting.id = latest.id
    UNION ALL
    SELECT 1
    FROM {schema}.stopped AS stopped
    WHERE stopped.id = latest.id
    LIMIT 1
) AS may_wait
CROSS JOIN LATERAL (
    SELECT blocker.chain_id
    FROM {schema}.blocker AS blocker
    WHERE blocker.job_id = latest.id
    OFFSET 0
) AS blocker
