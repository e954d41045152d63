-- Writes the edges of new jobs.
--
-- Parameters: $1 jobs, $2 positions, $3 blocker chains.
INSERT INTO {schema}.blocker (job_id, position, chain_id)
SELECT *
FROM unnest($1::uuid[], $2::integer[], $3::uuid[])
