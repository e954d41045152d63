-- For each key, the newest chain that a start with this key repeats: a chain that is young enough, else one that is open.
--
-- ?1: a JSON array of [type, key as hexadecimal text, time, array of chain ids to leave out]. Chains that were created at
-- that time or later count even if they have ended; if the time is null, only open chains count.
--
-- Open chains have an index of their own, so that a key that was used a million times costs no more than a new one.
WITH wanted AS MATERIALIZED (
    SELECT
        key AS place,
        value ->> 0 AS type,
        CAST(unhex(value ->> 1) AS TEXT) AS key,
        value ->> 2 AS since,
        value ->> 3 AS except_ids
    FROM json_each(?1)
),
found AS MATERIALIZED (
    SELECT
        wanted.place,
        coalesce(
            (
                SELECT young.id
                FROM {prefix}job AS young INDEXED BY {prefix}job_key
                WHERE young.type = wanted.type
                    AND young.deduplication_key = wanted.key
                    AND young.deduplication_key IS NOT NULL
                    AND young.created_at >= wanted.since
                    AND young.id NOT IN (SELECT unhex(omitted.value) FROM json_each(wanted.except_ids) AS omitted)
                ORDER BY young.created_at DESC, young.id DESC
                LIMIT 1
            ),
            (
                SELECT open.id
                FROM {prefix}job AS open INDEXED BY {prefix}job_open_key
                WHERE open.type = wanted.type
                    AND open.open_key = wanted.key
                    AND open.open_key IS NOT NULL
                    AND open.id NOT IN (SELECT unhex(omitted.value) FROM json_each(wanted.except_ids) AS omitted)
                ORDER BY open.created_at DESC, open.id DESC
                LIMIT 1
            )
        ) AS id
    FROM wanted
)
SELECT
    found.place AS place,
    found.id AS chain_id,
    (SELECT status FROM {prefix}job WHERE seq = {latest_job_of(found.id)}) AS status
FROM found
WHERE found.id IS NOT NULL
