-- How many edges to chains that have not completed jobs have.
--
-- Parameters: $1 jobs.
-- Answer: a row per job that has one.
SELECT blocker.job_id, count(*)::integer AS count
FROM {schema}.blocker AS blocker
WHERE blocker.job_id = ANY ($1::uuid[])
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.result AS result
        WHERE result.id = {latest_id:blocker.chain_id} AND result.final
    )
GROUP BY blocker.job_id
