//! How much of each type is ready.

use queuert::adapter::{QueueSample, SampleQueues};
use queuert::{StateError, Timestamp};

use crate::connection::session::{Session, query};
use crate::row;
use crate::statements::{Filling, text};
use crate::store::Store;

/// How many jobs at the head of a queue are looked at for the one that has been due longest.
const LOOKED_AT: usize = 100;

/// Samples the queues of types that have been interned.
pub(crate) async fn sample(
    session: &mut Session<'_>,
    store: &Store,
    sample: &SampleQueues,
) -> Result<Vec<QueueSample>, StateError> {
    let type_ids: Vec<i32> = sample.types.iter().map(|name| store.type_id(name)).collect();
    let filling = Filling::none().with("limit", sample.limit).with("looked_at", LOOKED_AT);
    let statement = store.statement(text::SAMPLE, filling);
    let rows = session.fetch(query(&statement).bind(type_ids)).await?;
    let mut samples = Vec::with_capacity(rows.len());
    for (name, found) in sample.types.iter().zip(&rows) {
        let ready: i64 = row::get(found, "ready")?;
        let earliest: Option<i64> = row::get(found, "earliest")?;
        let now = Timestamp::from_micros(row::get(found, "now")?);
        samples.push(QueueSample {
            type_name: name.clone(),
            ready: usize::try_from(ready).unwrap_or(0).min(sample.limit),
            oldest: earliest.map(|time| now.saturating_duration_since(Timestamp::from_micros(time))),
        });
    }
    Ok(samples)
}
