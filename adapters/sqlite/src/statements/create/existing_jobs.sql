-- Which of the given ids are ids of jobs.
--
-- ?1: a JSON array of job ids.
SELECT job.id AS id
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS job
    ON job.id = unhex(wanted.value)
