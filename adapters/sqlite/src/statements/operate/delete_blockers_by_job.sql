-- Deletes the rows that say for which chains the jobs of the given chains wait. Runs before the jobs are deleted.
--
-- ?1: a JSON array of chain ids.
DELETE FROM {prefix}blocker
WHERE job_id IN (
    SELECT unhex(value)
    FROM json_each(?1)
    UNION ALL
    SELECT job.id
    FROM json_each(?1) AS wanted
    CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_chain
        ON job.chain_id = unhex(wanted.value)
        AND job.chain_index > 0
)
