-- Locks dead or cancelled chains. They may have been retried since they were found.
--
-- Parameters: $1 their last jobs, $2 the time before which they must have stopped, $3 status.
-- Locks: the rows of `stopped`. One that another transaction has locked is left out.
SELECT job.chain_id, job.keyed
FROM {schema}.stopped AS stopped
JOIN {schema}.job AS job
    ON job.id = stopped.id
WHERE stopped.id = ANY ($1::uuid[])
    AND stopped.ended_at < $2::bigint
    AND stopped.status = $3::smallint
FOR UPDATE OF stopped SKIP LOCKED
