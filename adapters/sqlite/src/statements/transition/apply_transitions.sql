-- Writes every change of a job after its claim, and ends its lease.
--
-- Rows: the columns of `change`. `keep_error` leaves the error of the job as it is; `settled_fence` and `output` keep what
-- the job has if they are null.
--
-- Columns that are in no index cost nothing to write again. The payload and the error text are touched only if they change.
WITH change (
    seq,
    status,
    latest,
    due,
    scheduled_at,
    rank,
    attempt,
    ended_at,
    completed_by,
    keep_error,
    error_attempt,
    error_at,
    error,
    settled_fence,
    output,
    chain_open
) AS (VALUES {rows})
UPDATE {prefix}job AS job
SET
    status = change.status,
    latest = change.latest,
    due = change.due,
    scheduled_at = change.scheduled_at,
    rank = change.rank,
    attempt = change.attempt,
    ended_at = change.ended_at,
    completed_by = change.completed_by,
    error_attempt = iif(change.keep_error, job.error_attempt, change.error_attempt),
    error_at = iif(change.keep_error, job.error_at, change.error_at),
    error = iif(change.keep_error, job.error, change.error),
    settled_fence = coalesce(change.settled_fence, job.settled_fence),
    output = coalesce(change.output, job.output),
    open_key = iif(change.chain_open, job.deduplication_key, NULL),
    lease_owner = NULL,
    lease_until = NULL,
    fence = NULL
FROM change
WHERE job.seq = change.seq
