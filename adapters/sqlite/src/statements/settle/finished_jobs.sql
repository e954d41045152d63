-- Which jobs finish_jobs.sql has finished, asked if it has not finished all of them.
--
-- Rows: the columns of `ended`.
WITH ended (job, fence, ended_at) AS (VALUES {rows})
SELECT job.id AS id
FROM ended
CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_id
    ON job.id = ended.job
WHERE job.status = 3
    AND job.settled_fence = ended.fence
    AND job.ended_at = ended.ended_at
