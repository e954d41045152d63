-- Which jobs wait for a chain that has not completed.
--
-- ?1: a JSON array of job ids.
SELECT DISTINCT blocker.job_id AS id
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}blocker AS blocker INDEXED BY {prefix}blocker_open
    ON blocker.job_id = unhex(wanted.value)
    AND blocker.done = 0
