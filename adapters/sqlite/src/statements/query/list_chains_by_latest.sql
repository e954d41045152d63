-- A page of chains, found by their latest jobs.
--
-- {conditions} and their parameters are those of the query; {index} names an index or is empty.
SELECT {chain_columns}
FROM {prefix}job AS latest_job{index}
CROSS JOIN {prefix}job AS first_job
    ON first_job.id = latest_job.chain_id
WHERE {conditions}
ORDER BY {value} {direction}, first_job.id {direction}
LIMIT {limit}
