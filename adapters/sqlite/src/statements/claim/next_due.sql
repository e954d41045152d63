-- When the next job of these types becomes due; null if none is scheduled.
--
-- ?1: a JSON array of types.
SELECT
    min((
        SELECT scheduled_at
        FROM {prefix}job INDEXED BY {prefix}job_later
        WHERE status = 1
            AND due = 0
            AND type = wanted.value
        ORDER BY scheduled_at
        LIMIT 1
    )) AS scheduled_at
FROM json_each(?1) AS wanted
