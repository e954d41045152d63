-- Whole jobs by their ids, and the time.
--
-- Parameters: $1 jobs.
-- Answer: a row per job that exists, in the order given. A job that has lost its state is there too, so that a person can
-- look at it. In a transaction of the caller's (`guarded`) it is an error if that has ended and jobs were found.
SELECT
    {job_columns},
--: if guarded
    CASE WHEN {in_transaction} THEN {now} ELSE {transaction_ended}::bigint END AS now
--: else
    {now} AS now
--: end
FROM unnest($1::uuid[]) WITH ORDINALITY AS asked(id, place)
JOIN {schema}.job AS job
    ON job.id = asked.id
LEFT JOIN LATERAL (
    {state:job.id}
) AS state
    ON true
{failure:job.id}
ORDER BY asked.place
