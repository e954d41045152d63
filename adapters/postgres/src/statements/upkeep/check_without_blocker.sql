-- Checks a page of blocked jobs: which have a blocker that does not exist, so that it will never complete.
--
-- Parameters: $1 where the last page ended.
-- Values: `page`.
-- Answer: as of `check_without_job.sql`.
SELECT
    (array_agg(checked.id ORDER BY checked.id DESC))[1] AS last,
    count(*) AS count,
    coalesce(
        array_agg(checked.id ORDER BY checked.id) FILTER (
            WHERE EXISTS (
                SELECT 1
                FROM {schema}.blocker AS blocker
                WHERE blocker.job_id = checked.id
                    AND (
                        SELECT first.id
                        FROM {schema}.job AS first
                        WHERE first.id = blocker.chain_id AND first.chain_index = 0
                    ) IS NULL
            )
        ),
        ARRAY[]::uuid[]
    ) AS broken
FROM (
    SELECT waiting.id
    FROM {schema}.waiting AS waiting
    WHERE waiting.id > $1
    ORDER BY waiting.id
    LIMIT {page}
) AS checked
