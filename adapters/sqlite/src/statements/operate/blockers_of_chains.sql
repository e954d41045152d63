-- The chains for which any job of the given chains waits or has waited. The first job of a chain has the id of the chain;
-- the index over chains has the others.
--
-- ?1: a JSON array of chain ids.
SELECT DISTINCT blocker.chain_id AS chain_id
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS job
    ON job.id = unhex(wanted.value)
CROSS JOIN {prefix}blocker AS blocker
    ON blocker.job_id = job.id
UNION
SELECT blocker.chain_id
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_chain
    ON job.chain_id = unhex(wanted.value)
    AND job.chain_index > 0
CROSS JOIN {prefix}blocker AS blocker
    ON blocker.job_id = job.id
