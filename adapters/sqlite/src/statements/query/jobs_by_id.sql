-- Jobs, in the order of their ids in the parameter.
--
-- ?1: a JSON array of job ids.
SELECT {job_columns}
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS job
    ON job.id = unhex(wanted.value)
ORDER BY wanted.key
