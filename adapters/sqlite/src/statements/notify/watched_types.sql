-- For each type, how many jobs claims find, counted up to 64, and when the next one of the others is due.
--
-- ?1: a JSON array of types.
SELECT
    watched.value AS type,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM {prefix}job AS job INDEXED BY {prefix}job_queue
            WHERE job.status = 1
                AND job.due = 1
                AND job.type = watched.value
            LIMIT 64
        )
    ) AS ready,
    (
        SELECT scheduled_at
        FROM {prefix}job AS job INDEXED BY {prefix}job_later
        WHERE job.status = 1
            AND job.due = 0
            AND job.type = watched.value
        ORDER BY scheduled_at
        LIMIT 1
    ) AS scheduled_at
FROM json_each(?1) AS watched
