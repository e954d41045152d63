-- Counts down the edges of blocked jobs whose blockers have completed, and moves on the jobs that have none left.
--
-- Parameters: $1 jobs, each once, $2 how many of its edges have been taken, $3 the ageing step, $4 for each job the chain that
-- has ended, or one of them.
-- Answer: a row per job that was moved on. `blocker.ended_last` notes the chain.
-- Locks: the rows of `waiting` have been locked.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), still_blocked AS (
    UPDATE {schema}.waiting AS waiting
    SET remaining = waiting.remaining - taken.edges
    FROM unnest($1::uuid[], $2::integer[]) AS taken(id, edges)
    WHERE waiting.id = taken.id AND waiting.remaining > taken.edges
    RETURNING waiting.id
), unblocked AS (
    DELETE FROM {schema}.waiting AS waiting
    USING unnest($1::uuid[], $2::integer[], $4::uuid[]) AS taken(id, edges, ended_chain)
    WHERE waiting.id = taken.id AND waiting.remaining <= taken.edges
    RETURNING waiting.*, taken.ended_chain
), noted AS (
    UPDATE {schema}.blocker AS blocker
    SET ended_last = true
    FROM unblocked
    WHERE blocker.chain_id = ANY (ARRAY[unblocked.ended_chain]) AND blocker.job_id = ANY (ARRAY[unblocked.id])
), new_later AS (
    INSERT INTO {schema}.later (
        id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    )
    SELECT id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    FROM unblocked
    CROSS JOIN clock
    WHERE scheduled_at > now
), new_ready AS (
    INSERT INTO {schema}.ready (
        id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    )
    SELECT id, now - priority * $3::bigint, now, type_id, attempt, claims, priority, awaited, started_at, settled_fence
    FROM unblocked
    CROSS JOIN clock
    WHERE scheduled_at <= now
)
SELECT unblocked.id, job.chain_id, unblocked.type_id
FROM unblocked
JOIN {schema}.job AS job
    ON job.id = unblocked.id
ORDER BY unblocked.id
