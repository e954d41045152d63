-- Which jobs finish_jobs.sql has finished, asked if it has not finished all of them.
--
-- Rows: the columns of `ended`.
SELECT job.id AS id
FROM (
    SELECT
        column1 AS job,
        column2 AS fence,
        column3 AS ended_at
    FROM (VALUES {rows})
) AS ended
CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_id
    ON job.id = ended.job
WHERE job.status = 3
    AND job.settled_fence = ended.fence
    AND job.ended_at = ended.ended_at
