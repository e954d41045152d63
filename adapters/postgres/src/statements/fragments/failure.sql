-- Joins the latest failure of a job whose state is `state`. A completed job shows none.
--
-- Argument: the id of the job.
LEFT JOIN {schema}.failure AS failure
    ON failure.id = {argument} AND state.status <> 3
