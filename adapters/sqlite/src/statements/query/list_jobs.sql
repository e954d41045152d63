-- A page of jobs.
--
-- {conditions} and their parameters are those of the query; {index} names an index or is empty.
SELECT {job_columns}
FROM {prefix}job AS job{index}
WHERE {conditions}
ORDER BY {value} {direction}, job.id {direction}
LIMIT {limit}
