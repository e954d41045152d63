-- For each type, how many jobs are ready, and since when the oldest of them is due.
--
-- ?1: a JSON array of types. ?2: the time. ?3: the number at which counting ends.
--
-- Counts entries of indexes, and reads few rows: of the jobs that claims read, only the first hundred are looked at for
-- the one that has been due longest. Jobs that have become due since the last claim are still in the index of later ones.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM {prefix}job INDEXED BY {prefix}job_queue
            WHERE status = 1
                AND due = 1
                AND type = wanted.value
            LIMIT ?3
        )
    ) + (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM {prefix}job INDEXED BY {prefix}job_later
            WHERE status = 1
                AND due = 0
                AND type = wanted.value
                AND scheduled_at <= ?2
            LIMIT ?3
        )
    ) AS ready,
    (
        SELECT min(scheduled_at)
        FROM (
            SELECT scheduled_at
            FROM {prefix}job INDEXED BY {prefix}job_queue
            WHERE status = 1
                AND due = 1
                AND type = wanted.value
            ORDER BY rank, id
            LIMIT 100
        )
    ) AS oldest_promoted,
    (
        SELECT scheduled_at
        FROM {prefix}job INDEXED BY {prefix}job_later
        WHERE status = 1
            AND due = 0
            AND type = wanted.value
            AND scheduled_at <= ?2
        ORDER BY scheduled_at
        LIMIT 1
    ) AS oldest_later
FROM json_each(?1) AS wanted
ORDER BY wanted.key
