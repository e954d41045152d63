//! Settling: the ends of attempts. There are two ways.
//!
//! - The hot way ([`batch`], [`functions`]) settles a whole batch with one statement. An end that touches no chain but its own
//!   goes through the statement of [`batch`]. The end of a chain for which jobs wait goes through a function of the schema,
//!   which unblocks these jobs; so does a single end in a transaction of the caller's.
//! - The general way ([`general`]) locks everything first, asks the rules of the core, and writes. It is for ends from outside,
//!   for continuations with blockers, and for awaited ends where another transaction has a lock.

mod batch;
pub(crate) mod functions;
pub(crate) mod general;
mod repeated;

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
use crate::verbs::settle::functions::{Finish, Finished, finish_many, finish_one};
use crate::verbs::settle::repeated::{add_effects, add_effects_alone, is_repeated};
use crate::verbs::snapshot;

/// How often a batch is tried again within the caller's transaction before something is wrong.
const MOST_ROUNDS: usize = 1_000;

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
        for _ in 0..MOST_ROUNDS {
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
                        answers[place] = general::settle(session, store, &[&settlements[place]]).await?.pop();
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
        Box::pin(add_effects(session, store, settlements, &mut answers)).await?;
    }
    let settled = in_order(settlements, answers)?;
    snapshot::confirm_settled(session, store, settlements, &settled).await?;
    Ok(settled)
}

/// Finishes a chain in a transaction of the caller's, in which most settlements are the end of one attempt. `None` if it is
/// another kind of end, or the job is not the attempt's any more; then nothing has changed.
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
        // Ends that have committed are answered at once. If trying again may help, the rest is tried again. An end that cannot
        // be written is an error, so that the caller gives it up; it then asks for the other ends again, and they are repeated.
        let committed = |answer: &Option<Settled>| !matches!(answer, None | Some(Settled::Busy));
        let is_passing = matches!(error.kind(), StateErrorKind::Transient | StateErrorKind::Conflict);
        if !is_passing || !answers.iter().any(committed) {
            return Err(error);
        }
        for answer in &mut answers {
            answer.get_or_insert(Settled::Busy);
        }
    }
    // Boxed: it is rare, and every settlement would carry it.
    if is_repeated(&answers) {
        Box::pin(add_effects_alone(access, store, settlements, &mut answers)).await?;
    }
    in_order(settlements, answers)
}

/// Settles one part after the other, each of which commits.
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
            let settled = general::settle_alone(access, store, &finishes).await?;
            let busy = |(finish, settled): (&&Settlement, &Settled)| (finish.job, *settled == Settled::Busy);
            store.locked_jobs.note(finishes.iter().zip(&settled).map(busy));
            for (place, settled) in awaited.into_iter().zip(settled) {
                answers[place] = Some(settled);
            }
        }
        for place in general {
            answers[place] = general::settle_alone(access, store, &[&settlements[place]])
                .await?
                .pop();
        }
    }
    Ok(())
}

/// Settles a batch in the hot way. An item that comes back as [`Answer::General`] is the end of an awaited chain, and another
/// transaction has a lock.
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

/// Finishes chains with the function of the schema, whether or not jobs wait for them.
async fn finish_unlocked(
    access: &Access,
    store: &Store,
    items: &[Item<'_>],
) -> Result<Vec<(usize, Answer)>, StateError> {
    let free = |item: &&Item<'_>| !store.locked_jobs.contains(item.settlement.job);
    let finishes = items.iter().filter(free).filter_map(|item| Finish::of(item.settlement));
    let finishes: Vec<Finish<'_>> = finishes.collect();
    let finished = finish_without_waiting(access, store, &finishes).await?;
    let Some(Finished { mut applied, awaited }) = finished else {
        return Ok(items.iter().map(|item| (item.place, Answer::General)).collect());
    };
    store.awaited_ends.note(awaited);
    // A missing job is not the caller's any more.
    let answers = items.iter().map(|item| match applied.remove(&item.settlement.job) {
        Some(applied) => (item.place, Answer::Settled(Settled::Applied(applied))),
        None => (item.place, Answer::General),
    });
    Ok(answers.collect())
}

/// `None` if there is nothing to finish, or another transaction has one of the locks; then nothing has changed.
async fn finish_without_waiting(
    access: &Access,
    store: &Store,
    finishes: &[Finish<'_>],
) -> Result<Option<Finished>, StateError> {
    if finishes.is_empty() {
        return Ok(None);
    }
    let mut work = Work::statement(access).await?;
    match finish_many(&mut work.session(), store, finishes, Some(LOCK_WAIT)).await {
        Ok(finished) => {
            let finished = finished?;
            work.commit().await?;
            Ok(Some(finished))
        }
        // lock_not_available
        Err(error) if has_code(&error, "55P03") => {
            work.rollback().await?;
            Ok(None)
        }
        Err(error) => Err(translate(error)),
    }
}

/// Settles a batch with the statement; an item that another transaction has locked comes back as [`Answer::Again`].
///
/// Ends that met a lock the last time are settled apart from the others, which would otherwise wait for them again and again
/// while another transaction takes long.
async fn settle_unlocked(
    access: &Access,
    store: &Store,
    batch: &[Item<'_>],
    answers: &mut Vec<(usize, Answer)>,
) -> Result<(), StateError> {
    let known = !store.locked_jobs.is_empty();
    let (locked_before, fresh): (Vec<Item<'_>>, Vec<Item<'_>>) = batch
        .iter()
        .partition(|item| known && store.locked_jobs.contains(item.settlement.job));
    match settle_part(access, store, &fresh, Locking::Fail).await? {
        Some(settled) => answers.extend(settled),
        // Another transaction has one of the rows locked, or the id of a next job is taken. Nothing was done; now row by row.
        None => answers.extend(
            settle_part(access, store, &fresh, Locking::Skip)
                .await?
                .unwrap_or_default(),
        ),
    }
    answers.extend(
        settle_part(access, store, &locked_before, Locking::Skip)
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

/// `None` if the statement has failed because of a lock or an id that is taken, and was meant to fail then.
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
        Err(error) if locking == Locking::Fail && may_succeed_row_by_row(&error) => {
            work.rollback().await?;
            Ok(None)
        }
        Err(error) => Err(translate(error)),
    }
}

/// Whether another transaction has a row locked (lock_not_available), or the id of a next job is taken (unique_violation).
fn may_succeed_row_by_row(error: &sqlx::Error) -> bool {
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
