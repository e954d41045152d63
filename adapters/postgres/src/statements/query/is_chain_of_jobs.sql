-- A condition: the chain `first` has one of these jobs.
--
-- Values: `jobs`.
first.id = ANY (ARRAY(
    SELECT job.chain_id
    FROM {schema}.job AS job
    WHERE job.id = ANY ({jobs})
))
