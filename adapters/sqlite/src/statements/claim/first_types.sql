-- The types whose first jobs have the smallest ranks, for claims of more types than one statement merges.
--
-- ?1: a JSON array of types. ?2: how many types.
SELECT head.type AS type
FROM (
    SELECT
        wanted.value AS type,
        (
            SELECT seq
            FROM {prefix}job INDEXED BY {prefix}job_queue
            WHERE status = 1
                AND due = 1
                AND type = wanted.value
            ORDER BY rank, id
            LIMIT 1
        ) AS seq
    FROM json_each(?1) AS wanted
) AS head
CROSS JOIN {prefix}job AS job
    ON job.seq = head.seq
ORDER BY job.rank, job.id
LIMIT ?2
