-- The jobs of settlements, with what decides about them: no payload and no error text, which may be large.
--
-- Rows: the columns of `wanted`; `next_job` is the id of the job that the settlement creates, or null.
SELECT
    wanted.place AS place,
    job.seq AS seq,
    job.chain_id AS chain_id,
    job.chain_index AS chain_index,
    job.chain_type AS chain_type,
    job.chain_created_at AS chain_created_at,
    job.chain_keyed AS chain_keyed,
    job.status AS status,
    job.priority AS priority,
    job.attempt AS attempt,
    job.scheduled_at AS scheduled_at,
    job.fence AS fence,
    job.settled_fence AS settled_fence,
    job.rank AS rank,
    EXISTS (
        SELECT 1
        FROM {prefix}blocker AS waiting
        WHERE waiting.chain_id = job.chain_id
            AND waiting.done = 0
    ) AS awaited,
    EXISTS (
        SELECT 1
        FROM {prefix}job AS existing
        WHERE existing.id = wanted.next_job
    ) AS next_exists
FROM (
    SELECT
        column1 AS place,
        column2 AS job,
        column3 AS next_job
    FROM (VALUES {rows})
) AS wanted
CROSS JOIN {prefix}job AS job INDEXED BY {prefix}job_id
    ON job.id = wanted.job
