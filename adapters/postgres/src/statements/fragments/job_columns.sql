-- The columns of a whole job, as `row::jobs` reads them: `job` is the job, `state` its state, `failure` its latest failure.
job.id, job.type_id, job.chain_id, job.chain_type_id, job.chain_index, job.input, job.priority, job.max_attempts,
job.created_at, job.deduplication_key, job.trace_context, job.keyed, job.blockers, job.chain_created_at,
state.table_number, state.type_id AS state_type_id, state.status, state.attempt, state.claims, state.scheduled_at,
state.started_at, state.ended_at, state.completed_by, state.output, state.owner, state.leased_until, state.fence,
state.settled_fence, state.awaited, state.remaining,
failure.attempt AS failure_attempt, failure.at AS failure_at, failure.message AS failure_message
