-- Checks a page of blocked jobs: which count another number of open blockers than they have.
--
-- Parameters: $1 where the last page ended.
-- Values: `page`.
-- Answer: as of `check_without_job.sql`.
SELECT
    (array_agg(checked.id ORDER BY checked.id DESC))[1] AS last,
    count(*) AS count,
    coalesce(
        array_agg(checked.id ORDER BY checked.id) FILTER (WHERE checked.remaining <> checked.open),
        ARRAY[]::uuid[]
    ) AS broken
FROM (
    SELECT
        paged.id,
        paged.remaining,
        (
            SELECT count(*)
            FROM {schema}.blocker AS blocker
            WHERE blocker.job_id = paged.id
                AND NOT EXISTS (
                    SELECT 1
                    FROM {schema}.result AS result
                    WHERE result.id = {latest_id:blocker.chain_id} AND result.final
                )
        ) AS open
    FROM (
        SELECT waiting.id, waiting.remaining
        FROM {schema}.waiting AS waiting
        WHERE waiting.id > $1
        ORDER BY waiting.id
        LIMIT {page}
    ) AS paged
) AS checked
