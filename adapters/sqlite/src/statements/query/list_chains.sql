-- A page of chains, found by their first jobs.
--
-- {conditions} and their parameters are those of the query; {index} names an index or is empty.
SELECT {chain_columns}
FROM {prefix}job AS first_job{index}
CROSS JOIN {prefix}job AS latest_job
    ON latest_job.seq = {latest_job_of(first_job.id)}
WHERE {conditions}
ORDER BY {value} {direction}, first_job.id {direction}
LIMIT {limit}
