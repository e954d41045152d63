-- For jobs that ended their chains: the jobs that became pending by that.
--
-- ?1: a JSON array of job ids.
SELECT DISTINCT
    ended.key AS place,
    unblocked.id AS id,
    unblocked.chain_id AS chain_id,
    unblocked.type AS type
FROM json_each(?1) AS ended
CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_id
    ON job.id = unhex(ended.value)
    AND job.latest = 1
CROSS JOIN {prefix}blocker AS blocker INDEXED BY {prefix}blocker_chain
    ON blocker.chain_id = job.chain_id
    AND blocker.done = 2
CROSS JOIN {prefix}job AS unblocked INDEXED BY {prefix}job_id
    ON unblocked.id = blocker.job_id
ORDER BY ended.key, unblocked.id
