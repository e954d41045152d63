-- Writes every change of a job after its claim, and ends its lease.
--
-- Rows: the columns of `change`. `keep_error` leaves the error of the job as it is; `settled_fence` and `output` keep what
-- the job has if they are null.
--
-- Columns that are in no index cost nothing to write again. The payload and the error text are touched only if they change.
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
FROM (
    SELECT
        column1 AS seq,
        column2 AS status,
        column3 AS latest,
        column4 AS due,
        column5 AS scheduled_at,
        column6 AS rank,
        column7 AS attempt,
        column8 AS ended_at,
        column9 AS completed_by,
        column10 AS keep_error,
        column11 AS error_attempt,
        column12 AS error_at,
        column13 AS error,
        column14 AS settled_fence,
        column15 AS output,
        column16 AS chain_open
    FROM (VALUES {rows})
) AS change
WHERE job.seq = change.seq
