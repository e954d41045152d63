//! Ends that were written before: their answers, which got lost, are read again.

use queuert::adapter::{Repeated, Settled, Settlement, UnblockedJob};
use queuert::{ChainId, JobId, JobStatus, StateError, TypeName};

use crate::connection::{Connection, query};
use crate::statements::json_rows::JsonRows;
use crate::store::Store;

/// Adds to the answers of repeated settlements what the first ones did.
pub(super) async fn complete_answers(
    connection: &mut Connection<'_>,
    store: &Store,
    settlements: &[&Settlement],
    answers: &mut [Settled],
) -> Result<(), StateError> {
    let is_completed =
        |settled: &Settled| matches!(settled, Settled::Repeated(repeated) if repeated.status == JobStatus::Completed);
    let places: Vec<usize> = (0..answers.len())
        .filter(|place| is_completed(&answers[*place]))
        .collect();
    if places.is_empty() {
        return Ok(());
    }
    let ids = JsonRows::of_ids(places.iter().map(|place| settlements[*place].job.as_uuid()));
    let search = query(&store.statements.jobs_unblocked_by).bind(ids.as_str());
    let unblocked = connection.fetch(search, |found| {
        let job = UnblockedJob {
            job: JobId::from_uuid(found.get("id")?),
            chain: ChainId::from_uuid(found.get("chain_id")?),
            type_name: TypeName::from(found.get::<String>("type")?),
        };
        Ok((found.get::<i64>("place")?, job))
    });
    let unblocked = unblocked.await?;
    let search = query(&store.statements.blocked_successors).bind(ids.as_str());
    let blocked = connection.fetch(search, |found| found.get::<i64>("place")).await?;
    for (place, job) in unblocked {
        if let Some(repeated) = answer_at(answers, &places, place) {
            repeated.unblocked.push(job);
        }
    }
    for place in blocked {
        if let Some(repeated) = answer_at(answers, &places, place) {
            repeated.next_blocked = true;
        }
    }
    Ok(())
}

fn answer_at<'a>(answers: &'a mut [Settled], places: &[usize], place: i64) -> Option<&'a mut Repeated> {
    let place = usize::try_from(place).ok().and_then(|place| places.get(place))?;
    match answers.get_mut(*place) {
        Some(Settled::Repeated(repeated)) => Some(repeated),
        _ => None,
    }
}
