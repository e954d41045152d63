-- The status of each chain; null if there is no such chain.
--
-- ?1: a JSON array of chain ids.
SELECT
    unhex(wanted.value) AS chain_id,
    (SELECT status FROM {prefix}job WHERE seq = {latest_job_of(unhex(wanted.value))}) AS status
FROM json_each(?1) AS wanted
