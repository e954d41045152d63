//! The ends of attempts. Those that touch nothing but their own chain go through one statement for the whole batch, those
//! that somebody waits for through [`finish_many`] or, if locks are in their way, through [`finish_together`], and the
//! rest, one by one, through [`settle_general`].

mod batch;
pub(crate) mod functions;
pub(crate) mod general;
mod repeated;
mod together;

use std::collections::HashSet;

use queuert::adapter::{Applied, Outcome, Settled, Settlement};
use queuert::{JobId, StateError, StateErrorKind, TypeName};

use crate::connection::connect::Access;
use crate::connection::session::Session;
use crate::error::{corrupt, has_code, translate};
use crate::statements::settle::{LOCK_WAIT, Locking};
use crate::store::Store;
use crate::transaction::Work;
use crate::verbs::create::writable;
use crate::verbs::settle::batch::{Answer, Item, divide, next, settle_batch};
use crate::verbs::settle::functions::{Finish, Finished, finish_many, finish_one, once};
use crate::verbs::settle::general::settle_general;
use crate::verbs::settle::repeated::{is_repeated, recall, recall_alone};
use crate::verbs::settle::together::{finish_together, settle_alone_general};
use crate::verbs::snapshot;

/// How often a batch is looked at again within the caller's transaction before something is wrong.
const MANY_ROUNDS: usize = 1_000;

/// Settles in the caller's transaction, which waits for locks.
pub(crate) async fn settle(
    session: &mut Session<'_>,
    store: &Store,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    check(settlements)?;
    if let [settlement] = settlements
        && let Some(applied) = finish_alone(session, store, settlement).await?
    {
        return Ok(vec![Settled::Applied(applied)]);
    }
    store.intern(session, next_types(settlements)).await?;
    let mut answers: Vec<Option<Settled>> = vec![None; settlements.len()];
    for run in runs(settlements) {
        let mut left = run;
        for _ in 0..MANY_ROUNDS {
            let (batch, general) = divide(settlements, &left);
            left.clear();
            let mut found = settle_batch(session, store, &batch, Locking::Wait)
                .await
                .map_err(translate)??;
            found.extend(general.into_iter().map(|place| (place, Answer::General)));
            for (place, answer) in found {
                match answer {
                    Answer::Settled(settled) => answers[place] = Some(settled),
                    Answer::General => {
                        answers[place] = Some(settle_general(session, store, &settlements[place]).await?);
                    }
                    Answer::Again => left.push(place),
                }
            }
            if left.is_empty() {
                break;
            }
        }
    }
    if is_repeated(&answers) {
        Box::pin(recall(session, store, settlements, &mut answers)).await?;
    }
    let settled = in_order(settlements, answers)?;
    snapshot::confirm_settled(session, store, settlements, &settled).await?;
    Ok(settled)
}

/// Most of what is settled in a transaction of the caller's is the end of one attempt. `None` if it is something else, or
/// the job is not the attempt's any more, and nothing has changed.
async fn finish_alone(
    session: &mut Session<'_>,
    store: &Store,
    settlement: &Settlement,
) -> Result<Option<Applied>, StateError> {
    let Some(finish) = Finish::of(settlement) else {
        return Ok(None);
    };
    if finish_one(session, store, finish).await? {
        return Ok(Some(Applied::default()));
    }
    let mut finished = finish_many(session, store, &[finish], None)
        .await
        .map_err(translate)??;
    Ok(finished.applied.remove(&finish.job))
}

/// Settles by itself, and waits for no lock. What needs several statements has a transaction of its own.
pub(crate) async fn settle_alone(
    access: &Access,
    store: &Store,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    check(settlements)?;
    let unknown = store.type_ids.unknown(next_types(settlements));
    store.intern_alone(access, unknown).await?;
    let mut answers: Vec<Option<Settled>> = vec![None; settlements.len()];
    if let Err(error) = settle_parts(access, store, settlements, &mut answers).await {
        // What has committed is answered at once, and if trying again may help, the rest is tried again. What cannot be
        // written must be told, for the caller to part with it: the rest is asked for again then, and repeated.
        let committed = |answer: &Option<Settled>| !matches!(answer, None | Some(Settled::Busy));
        let may_pass = matches!(error.kind(), StateErrorKind::Transient | StateErrorKind::Conflict);
        if !may_pass || !answers.iter().any(committed) {
            return Err(error);
        }
        for answer in &mut answers {
            answer.get_or_insert(Settled::Busy);
        }
    }
    // Boxed: it is rare, and every settlement would carry it.
    if is_repeated(&answers) {
        Box::pin(recall_alone(access, store, settlements, &mut answers)).await?;
    }
    in_order(settlements, answers)
}

/// One part after the other, each of which commits.
async fn settle_parts(
    access: &Access,
    store: &Store,
    settlements: &[Settlement],
    answers: &mut [Option<Settled>],
) -> Result<(), StateError> {
    for run in runs(settlements) {
        let (batch, general) = divide(settlements, &run);
        let (mut found, mut awaited) = (Vec::new(), Vec::new());
        let settled = settle_batches(access, store, batch, &mut found).await;
        for (place, answer) in found {
            match answer {
                Answer::Settled(settled) => answers[place] = Some(settled),
                Answer::General => awaited.push(place),
                Answer::Again => answers[place] = Some(Settled::Busy),
            }
        }
        settled?;
        if !awaited.is_empty() {
            let finishes: Vec<&Settlement> = awaited.iter().map(|place| &settlements[*place]).collect();
            let settled = finish_together(access, store, &finishes).await?;
            let busy = |(finish, settled): (&&Settlement, &Settled)| (finish.job, *settled == Settled::Busy);
            store.locked_jobs.note(finishes.iter().zip(&settled).map(busy));
            for (place, settled) in awaited.into_iter().zip(settled) {
                answers[place] = Some(settled);
            }
        }
        for place in general {
            answers[place] = Some(settle_alone_general(access, store, &settlements[place]).await?);
        }
    }
    Ok(())
}

/// Settles what may go together by itself. What comes back as [`Answer::General`] is awaited, and locks are in its way.
async fn settle_batches(
    access: &Access,
    store: &Store,
    batch: Vec<Item<'_>>,
    answers: &mut Vec<(usize, Answer)>,
) -> Result<(), StateError> {
    let expected = store.awaited_ends.is_expected();
    let (finishes, rest): (Vec<Item<'_>>, Vec<Item<'_>>) = batch
        .iter()
        .partition(|item| expected && Finish::of(item.settlement).is_some());
    answers.extend(finish_unlocked(access, store, &finishes).await?);
    let mut awaited = Vec::new();
    let mut found = Vec::with_capacity(rest.len());
    let settled = settle_unlocked(access, store, &rest, &mut found).await;
    for (place, answer) in found {
        match answer {
            Answer::General => awaited.extend(rest.iter().filter(|item| item.place == place)),
            answer => answers.push((place, answer)),
        }
    }
    settled?;
    if !awaited.is_empty() {
        answers.extend(finish_unlocked(access, store, &awaited).await?);
    }
    Ok(())
}

/// Finishes chains by itself, whoever waits for them.
async fn finish_unlocked(
    access: &Access,
    store: &Store,
    items: &[Item<'_>],
) -> Result<Vec<(usize, Answer)>, StateError> {
    let free = |item: &&Item<'_>| !store.locked_jobs.contains(item.settlement.job);
    let finishes = once(items.iter().filter(free).filter_map(|item| Finish::of(item.settlement)));
    let finished = match finishes.is_empty() {
        true => None,
        false => {
            let mut work = Work::statement(access).await?;
            match finish_many(&mut work.session(), store, &finishes, Some(LOCK_WAIT)).await {
                Ok(finished) => {
                    let finished = finished?;
                    work.commit().await?;
                    Some(finished)
                }
                // lock_not_available
                Err(error) if has_code(&error, "55P03") => {
                    work.rollback().await?;
                    None
                }
                Err(error) => return Err(translate(error)),
            }
        }
    };
    let Some(Finished { mut applied, awaited }) = finished else {
        return Ok(items.iter().map(|item| (item.place, Answer::General)).collect());
    };
    store.awaited_ends.note(awaited);
    // Those that are missing are not the caller's any more, or are there twice.
    let answers = items.iter().map(|item| match applied.remove(&item.settlement.job) {
        Some(applied) => (item.place, Answer::Settled(Settled::Applied(applied))),
        None => (item.place, Answer::General),
    });
    Ok(answers.collect())
}

/// Settles a batch by itself; what is locked comes back as [`Answer::Again`].
///
/// Those of which a lock was in the way the last time are apart from the others, which would have to wait for them again
/// and again while somebody has a long transaction.
async fn settle_unlocked(
    access: &Access,
    store: &Store,
    batch: &[Item<'_>],
    answers: &mut Vec<(usize, Answer)>,
) -> Result<(), StateError> {
    let known = !store.locked_jobs.is_empty();
    let (met, fresh): (Vec<Item<'_>>, Vec<Item<'_>>) = batch
        .iter()
        .partition(|item| known && store.locked_jobs.contains(item.settlement.job));
    match settle_part(access, store, &fresh, Locking::Fail).await? {
        Some(settled) => answers.extend(settled),
        // Somebody has one of the rows locked, or one of the jobs. Nothing was done; now row by row.
        None => answers.extend(
            settle_part(access, store, &fresh, Locking::Skip)
                .await?
                .unwrap_or_default(),
        ),
    }
    answers.extend(
        settle_part(access, store, &met, Locking::Skip)
            .await?
            .unwrap_or_default(),
    );
    let locked: HashSet<usize> = answers
        .iter()
        .filter(|(_, answer)| matches!(answer, Answer::Again))
        .map(|(place, _)| *place)
        .collect();
    if !locked.is_empty() || !store.locked_jobs.is_empty() {
        let jobs = batch.iter();
        let noted = jobs.map(|item| (item.settlement.job, locked.contains(&item.place)));
        store.locked_jobs.note(noted);
    }
    Ok(())
}

/// `None` if somebody was in the way and the statement was to fail then.
async fn settle_part(
    access: &Access,
    store: &Store,
    items: &[Item<'_>],
    locking: Locking,
) -> Result<Option<Vec<(usize, Answer)>>, StateError> {
    if items.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let mut work = Work::statement(access).await?;
    match settle_batch(&mut work.session(), store, items, locking).await {
        Ok(answers) => {
            let answers = answers?;
            work.commit().await?;
            Ok(Some(answers))
        }
        Err(error) if locking == Locking::Fail && is_in_the_way(&error) => {
            work.rollback().await?;
            Ok(None)
        }
        Err(error) => Err(translate(error)),
    }
}

/// Whether somebody else has a row locked (lock_not_available), or the id of a next job is taken (unique_violation).
fn is_in_the_way(error: &sqlx::Error) -> bool {
    ["55P03", "23505"].iter().any(|code| has_code(error, code))
}

fn in_order(settlements: &[Settlement], answers: Vec<Option<Settled>>) -> Result<Vec<Settled>, StateError> {
    let missing = |settlement: &Settlement| corrupt(format!("the end of job {} has no answer", settlement.job));
    let answers = settlements.iter().zip(answers);
    answers
        .map(|(settlement, answer)| answer.ok_or_else(|| missing(settlement)))
        .collect()
}

/// Refuses texts that cannot be written before they spoil a transaction.
fn check(settlements: &[Settlement]) -> Result<(), StateError> {
    for settlement in settlements {
        match &settlement.outcome {
            Outcome::Finish { output } => drop(writable(Some(output.as_str()), settlement.job)?),
            Outcome::Continue { next } => {
                writable(Some(next.input.as_str()), next.id)?;
                writable(next.trace_context.as_deref(), next.id)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn next_types(settlements: &[Settlement]) -> impl Iterator<Item = &TypeName> {
    settlements.iter().filter_map(next).map(|next| &next.type_name)
}

/// Places of settlements that may go together, in order: an end that creates a job with blockers stands alone, because
/// whether it closes a circle depends on all that came before it. So does one whose next job has an id that an earlier
/// one of the run has, and one for the same job: a process that lost a job and has claimed it again may end both attempts
/// at once, and the answer of a statement names jobs, not fences.
fn runs(settlements: &[Settlement]) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut ids: HashSet<JobId> = HashSet::new();
    let mut jobs: HashSet<JobId> = HashSet::with_capacity(settlements.len());
    let mut alone = true;
    for (place, settlement) in settlements.iter().enumerate() {
        let stands_alone = Item::of(place, settlement).is_none();
        let repeated = !jobs.insert(settlement.job) | next(settlement).is_some_and(|next| !ids.insert(next.id));
        match runs.last_mut() {
            Some(run) if !alone && !stands_alone && !repeated => run.push(place),
            _ => {
                runs.push(vec![place]);
                (ids, jobs) = (HashSet::new(), HashSet::from([settlement.job]));
                ids.extend(next(settlement).map(|next| next.id));
            }
        }
        alone = stands_alone;
    }
    runs
}
