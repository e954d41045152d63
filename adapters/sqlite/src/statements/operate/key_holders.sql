-- The type and the deduplication key of chains that have a key, and another open chain with the same key, if there is one.
--
-- ?1: a JSON array of chain ids.
SELECT
    first_job.id AS chain_id,
    first_job.type AS type,
    first_job.deduplication_key AS key,
    (
        SELECT open.id
        FROM {prefix}job AS open INDEXED BY {prefix}job_open_key
        WHERE open.type = first_job.type
            AND open.open_key = first_job.deduplication_key
            AND open.open_key IS NOT NULL
            AND open.id <> first_job.id
        ORDER BY open.created_at DESC, open.id DESC
        LIMIT 1
    ) AS holder
FROM json_each(?1) AS wanted
CROSS JOIN {prefix}job AS first_job
    ON first_job.id = unhex(wanted.value)
    AND first_job.deduplication_key IS NOT NULL
