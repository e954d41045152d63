//! Ends whose answer was lost: the worker asks for them again under their fence, and the store says which jobs they unblocked
//! and whether the next job had to wait, so that the worker can announce it.

use queuert::adapter::{Settled, Settlement};
use queuert::{ChainId, JobId, JobStatus, StateError};
use uuid::Uuid;

use crate::connection::connect::Access;
use crate::connection::session::{Session, query};
use crate::row;
use crate::store::Store;
use crate::transaction::Work;
use crate::verbs::settle::general::named;

/// Whether the end was written before, and may have changed other jobs.
fn completed_before(answer: &Option<Settled>) -> bool {
    matches!(answer, Some(Settled::Repeated(repeated)) if repeated.status == JobStatus::Completed)
}

/// Whether one of the ends was written before, and may have changed other jobs.
pub(crate) fn is_repeated(answers: &[Option<Settled>]) -> bool {
    answers.iter().any(completed_before)
}

/// Adds to the answers of ends that were written before what these ends did.
pub(crate) async fn add_effects(
    session: &mut Session<'_>,
    store: &Store,
    settlements: &[Settlement],
    answers: &mut [Option<Settled>],
) -> Result<(), StateError> {
    let ends = settlements.iter().zip(answers.iter());
    let jobs: Vec<Uuid> = ends
        .filter(|(_, answer)| completed_before(answer))
        .map(|(settlement, _)| settlement.job.as_uuid())
        .collect();
    let (mut ends, mut unblocked) = (Vec::new(), Vec::new());
    let mut blocked = Vec::new();
    for found in session.fetch(query(&store.sql.repeated_ends).bind(jobs)).await? {
        let end = JobId::from_uuid(row::get(&found, "ended_id")?);
        match row::get::<Option<Uuid>>(&found, "unblocked_id")? {
            Some(job) => {
                let chain = ChainId::from_uuid(row::get(&found, "unblocked_chain_id")?);
                unblocked.push((JobId::from_uuid(job), chain, row::get(&found, "unblocked_type_id")?));
                ends.push(end);
            }
            None => blocked.push(end),
        }
    }
    let mut unblocked: Vec<_> = ends.into_iter().zip(named(session, store, unblocked).await?).collect();
    unblocked.sort_by_key(|(end, _)| *end);
    blocked.sort_unstable();
    for (settlement, answer) in settlements.iter().zip(answers) {
        if let Some(Settled::Repeated(repeated)) = answer {
            let first = unblocked.partition_point(|(end, _)| *end < settlement.job);
            let own = unblocked[first..].iter().take_while(|(end, _)| *end == settlement.job);
            repeated.unblocked = own.map(|(_, job)| job.clone()).collect();
            repeated.next_blocked = blocked.binary_search(&settlement.job).is_ok();
        }
    }
    Ok(())
}

/// The same on a connection of its own. If the store fails, the worker is to ask for these ends again; the other answers must
/// not be lost for it.
pub(crate) async fn add_effects_alone(
    access: &Access,
    store: &Store,
    settlements: &[Settlement],
    answers: &mut [Option<Settled>],
) -> Result<(), StateError> {
    let added = async {
        let mut work = Work::statement(access).await?;
        add_effects(&mut work.session(), store, settlements, answers).await?;
        work.commit().await
    };
    let Err(error) = added.await else {
        return Ok(());
    };
    if !answers.iter().any(|answer| matches!(answer, Some(Settled::Applied(_)))) {
        return Err(error);
    }
    for answer in answers
        .iter_mut()
        .filter(|answer| matches!(answer, Some(Settled::Repeated(_))))
    {
        *answer = Some(Settled::Busy);
    }
    Ok(())
}
