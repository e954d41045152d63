-- How many jobs are pending, counted up to the limit in each of the two indexes that share them.
--
-- ?1: the limit.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM {prefix}job
            WHERE status = 1
                AND due = 1
            LIMIT ?1
        )
    ) + (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM {prefix}job
            WHERE status = 1
                AND due = 0
            LIMIT ?1
        )
    ) AS pending
