-- A condition of list_chains.sql: the chain has one of the given jobs.
--
-- {list}: a JSON array of job ids.
first_job.id IN (
    SELECT member.chain_id
    FROM json_each({list}) AS wanted
    CROSS JOIN {prefix}job AS member
        ON member.id = unhex(wanted.value)
)
