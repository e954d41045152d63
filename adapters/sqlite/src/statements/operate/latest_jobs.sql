-- The latest jobs of chains, each with the place of its chain in the parameter.
--
-- ?1: a JSON array of chain ids.
SELECT
    {job_columns},
    wanted.key AS place
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS job
    ON job.seq = {latest_job_of(unhex(wanted.value))}
ORDER BY wanted.key
