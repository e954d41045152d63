-- Those of the given latest jobs that have no row of state, locked by their rows in `job`.
--
-- Parameters: $1 jobs.
-- Locks: the rows of `job`, in order of id. A row that another transaction has locked is waited for, or (`skips`) left out.
-- Reason: a job that moves is in one table in every snapshot, so one statement tells.
SELECT job.chain_id, job.id
FROM {schema}.job AS job
WHERE job.id = ANY ($1::uuid[])
    AND NOT EXISTS (SELECT 1 FROM {schema}.ready AS state_row WHERE state_row.id = job.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.later AS state_row WHERE state_row.id = job.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.waiting AS state_row WHERE state_row.id = job.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.running AS state_row WHERE state_row.id = job.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.result AS state_row WHERE state_row.id = job.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.stopped AS state_row WHERE state_row.id = job.id)
ORDER BY job.id
FOR UPDATE OF job
--: if skips
SKIP LOCKED
--: end
