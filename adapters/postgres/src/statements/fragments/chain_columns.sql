-- The columns of a whole chain, as `row::chains` reads them: `first` is its first job, `latest` its latest one, `state` and
-- `failure` are those of the latter.
first.id, first.type_id, first.chain_type_id, first.input, first.created_at, first.deduplication_key, first.trace_context,
latest.id AS latest_id, latest.type_id AS latest_type_id, latest.chain_index,
state.type_id AS state_type_id, state.status, state.output, state.ended_at,
failure.attempt AS failure_attempt, failure.at AS failure_at, failure.message AS failure_message
