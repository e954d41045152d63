//! How a decision of the core about a job becomes a row.

use queuert::adapter::rules::{Change, ErrorChange};
use queuert::{ChainId, Payload, StateError, Timestamp, WorkerId};

use crate::connection::{Connection, query};
use crate::row::{JobToSettle, StoredJob, status_number};
use crate::statements::json_rows::JsonRows;
use crate::store::Store;

/// A change of one job, with what the store needs to write it.
#[derive(Debug)]
pub(crate) struct Transition {
    pub(crate) seq: i64,
    pub(crate) chain: ChainId,
    pub(crate) chain_index: u32,
    /// Whether the chain has a deduplication key.
    pub(crate) keyed: bool,
    pub(crate) priority: i16,
    /// The rank before the change.
    pub(crate) rank: i64,
    pub(crate) change: Change,
}

impl Transition {
    pub(crate) fn of_job(stored: &StoredJob, change: Change) -> Self {
        Self {
            seq: stored.seq,
            chain: stored.job.chain_id,
            chain_index: stored.job.chain_index,
            keyed: stored.keyed,
            priority: stored.job.priority,
            rank: stored.rank,
            change,
        }
    }

    pub(crate) fn of_settlement(job: &JobToSettle, change: Change) -> Self {
        Self {
            seq: job.seq,
            chain: job.chain_id,
            chain_index: job.chain_index,
            keyed: job.keyed,
            priority: job.priority,
            rank: job.rank,
            change,
        }
    }
}

/// Writes changes of jobs, which have no lease afterwards.
pub(crate) async fn apply(
    connection: &mut Connection<'_>,
    store: &Store,
    transitions: &[Transition],
    now: Timestamp,
) -> Result<(), StateError> {
    if transitions.is_empty() {
        return Ok(());
    }
    // The statement below writes the key of a chain whose first job changes; a later job does not have the key.
    let mut keys = JsonRows::new();
    for transition in transitions {
        if transition.keyed && transition.chain_index > 0 {
            keys.row(|row| {
                row.id(transition.chain.as_uuid()).number(transition.change.chain_open);
            });
        }
    }
    let written = store
        .statements
        .apply_transitions
        .execute(connection, transitions, |values, transition| {
            let change = &transition.change;
            let of_schedule = store.rank(change.scheduled_at, transition.priority);
            values
                .number(transition.seq)
                .number(status_number(change.status))
                .number(change.latest)
                .number(change.scheduled_at <= now)
                .number(change.scheduled_at.as_micros())
                .number(change.rank.apply(transition.rank, of_schedule))
                .number(change.attempt)
                .add(change.ended_at.map(|time| time.as_micros()))
                .add(change.completed_by.as_ref().map(WorkerId::as_str));
            match &change.error {
                ErrorChange::Keep => values.number(true).null().null().null(),
                ErrorChange::Clear => values.number(false).null().null().null(),
                ErrorChange::Set(error) => values
                    .number(false)
                    .number(error.attempt)
                    .number(error.at.as_micros())
                    .add(error.message.as_str()),
            };
            values
                .add(change.settled_fence.map(|fence| fence.as_uuid()))
                .add(change.output.as_ref().map(Payload::as_str))
                .number(change.chain_open);
        });
    written.await?;
    if !keys.is_empty() {
        let update = query(&store.statements.update_open_keys).bind(keys.finish());
        connection.execute(update).await?;
    }
    Ok(())
}
