-- Moves jobs that have become due into the index that claims read. At most ten thousand at once, so that a million jobs
-- that are due at the same time do not stall a claim.
--
-- ?1: a JSON array of types. ?2: the time.
UPDATE {prefix}job
SET due = 1
WHERE seq IN (
    SELECT seq
    FROM {prefix}job INDEXED BY {prefix}job_later
    WHERE status = 1
        AND due = 0
        AND type IN (SELECT value FROM json_each(?1))
        AND scheduled_at <= ?2
    LIMIT 10000
)
