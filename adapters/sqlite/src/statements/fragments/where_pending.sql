-- A condition of lists: the job is pending. The two indexes that share the pending jobs find them.
--
-- {job}: `job` or `latest_job`.
{job}.seq IN (
    SELECT seq
    FROM {prefix}job
    WHERE status = 1
        AND due = 1
    UNION ALL
    SELECT seq
    FROM {prefix}job
    WHERE status = 1
        AND due = 0
)
