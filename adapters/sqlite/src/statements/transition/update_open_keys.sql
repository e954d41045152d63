-- Notes on the first jobs of chains whether the chain is open, and so has its deduplication key.
--
-- ?1: a JSON array of [chain id, whether the chain is open].
UPDATE {prefix}job
SET open_key = iif(chain.open, deduplication_key, NULL)
FROM (
    SELECT
        unhex(value ->> 0) AS id,
        value ->> 1 AS open
    FROM json_each(?1)
) AS chain
WHERE {prefix}job.id = chain.id
