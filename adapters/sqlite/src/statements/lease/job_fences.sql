-- Status and fence of jobs, to tell whether an attempt still has its job.
--
-- ?1: a JSON array of job ids.
SELECT
    job.id AS id,
    job.status AS status,
    job.fence AS fence
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS job
    ON job.id = unhex(wanted.value)
