-- Where jobs stand, for callers that take them for theirs.
--
-- Parameters: $1 jobs.
-- Answer: a row per job that has a state.
SELECT
    job.id, state.status, state.fence, state.settled_fence, state.attempt, state.scheduled_at, state.awaited
FROM unnest($1::uuid[]) AS asked(id)
JOIN {schema}.job AS job
    ON job.id = asked.id
CROSS JOIN LATERAL (
    {state:job.id}
) AS state
