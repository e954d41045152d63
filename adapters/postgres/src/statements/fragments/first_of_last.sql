-- Joins the id of the chain that ended with the job `last`, as `first.id`.
CROSS JOIN LATERAL (
    SELECT job.chain_id AS id
    FROM {schema}.job AS job
    WHERE job.id = last.id
    OFFSET 0
) AS first
