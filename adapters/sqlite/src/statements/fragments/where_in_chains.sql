-- A condition of list_jobs.sql: the job is one of the given chains. Two indexes share the jobs of a chain: the first one is
-- found by its id.
--
-- {list}: a JSON array of chain ids.
job.seq IN (
    SELECT member.seq
    FROM json_each({list}) AS wanted
    CROSS JOIN {prefix}job AS member
        ON member.id = unhex(wanted.value)
        AND member.chain_index = 0
    UNION ALL
    SELECT member.seq
    FROM json_each({list}) AS wanted
    CROSS JOIN {prefix}job AS member
        ON member.chain_id = unhex(wanted.value)
        AND member.chain_index > 0
)
