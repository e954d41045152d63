//! The ends of attempts. Those that touch nothing but their own chain go through one statement for the whole batch, those
//! that somebody waits for through [`finish_together`], and the rest, one by one, through [`settle_carefully`].

use std::borrow::Cow;
use std::collections::HashSet;

use queuert::adapter::{Applied, Authority, HandOver, NewJob, Outcome, Refusal, Settled, Settlement};
use queuert::{Fence, JobId, JobStatus, Schedule, StateError, Timestamp, TypeName};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::careful::settle_carefully;
use crate::change::storable;
use crate::claim::{Standing, held, micros, standings};
use crate::connect::Access;
use crate::core::Core;
use crate::create::{split, taken, writable};
use crate::error::{corrupt, has_code, translate};
use crate::row;
use crate::session::{Session, query};
use crate::settle_statement::{BURY, CONTINUE, FINISH, Locking, RELEASE, RETRY, SNOOZE, Shape};
use crate::together::{finish_together, settle_singly};
use crate::transaction::Work;

/// How often a batch is looked at again within the caller's transaction before something is wrong.
const MANY_ROUNDS: usize = 1_000;

/// A settlement by an attempt that may go through the statement for batches.
#[derive(Clone, Copy)]
struct Item<'a> {
    place: usize,
    settlement: &'a Settlement,
    fence: Fence,
    worker: &'a str,
}

impl<'a> Item<'a> {
    /// `None` for what has to look at other chains.
    fn of(place: usize, settlement: &'a Settlement) -> Option<Self> {
        match &settlement.authority {
            Authority::Fence { fence, worker } if blockers(settlement).is_empty() => Some(Self {
                place,
                settlement,
                fence: *fence,
                worker: worker.as_str(),
            }),
            _ => None,
        }
    }

    fn kind(&self) -> i16 {
        match self.settlement.outcome {
            Outcome::Finish { .. } => FINISH,
            Outcome::Continue { .. } => CONTINUE,
            Outcome::Retry { .. } => RETRY,
            Outcome::Bury { .. } => BURY,
            Outcome::Release => RELEASE,
            Outcome::Snooze { .. } => SNOOZE,
        }
    }
}

pub(crate) fn next(settlement: &Settlement) -> Option<&NewJob> {
    match &settlement.outcome {
        Outcome::Continue { next } => Some(next),
        _ => None,
    }
}

/// How the job is to be handed over, if it may be. One for a time, even one that has passed, goes through the queue: only
/// the server knows whether it is due.
fn handed_over(next: &NewJob) -> Option<HandOver> {
    next.hand_over
        .filter(|_| next.schedule == Schedule::Now && next.blockers.is_empty())
}

fn blockers(settlement: &Settlement) -> &[queuert::ChainId] {
    next(settlement).map_or(&[], |next| &next.blockers)
}

/// What became of an item in a batch.
enum Answer {
    Settled(Settled),
    /// It has to be looked at by itself.
    Careful,
    /// In the caller's transaction: something changed between two statements.
    Again,
}

/// Settles in the caller's transaction, which waits for locks.
pub(crate) async fn settle(
    session: &mut Session<'_>,
    core: &Core,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    check(settlements)?;
    core.intern(session, next_types(settlements)).await?;
    let mut answers: Vec<Option<Settled>> = vec![None; settlements.len()];
    for run in runs(settlements) {
        let mut left = run;
        for _ in 0..MANY_ROUNDS {
            let (batch, careful) = divide(settlements, &left);
            left.clear();
            let mut found = settle_batch(session, core, &batch, Locking::Wait)
                .await
                .map_err(translate)??;
            found.extend(careful.into_iter().map(|place| (place, Answer::Careful)));
            for (place, answer) in found {
                match answer {
                    Answer::Settled(settled) => answers[place] = Some(settled),
                    Answer::Careful => {
                        answers[place] = Some(settle_carefully(session, core, &settlements[place]).await?);
                    }
                    Answer::Again => left.push(place),
                }
            }
            if left.is_empty() {
                break;
            }
        }
    }
    in_order(settlements, answers)
}

/// Settles by itself, and waits for no lock. What needs several statements has a transaction of its own.
pub(crate) async fn settle_alone(
    access: &Access,
    core: &Core,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    check(settlements)?;
    let unknown = core.types.unknown(next_types(settlements));
    core.intern_alone(access, unknown).await?;
    let mut answers: Vec<Option<Settled>> = vec![None; settlements.len()];
    for run in runs(settlements) {
        let (batch, careful) = divide(settlements, &run);
        let mut awaited = Vec::new();
        for (place, answer) in settle_unlocked(access, core, &batch).await? {
            match answer {
                Answer::Settled(settled) => answers[place] = Some(settled),
                Answer::Careful => awaited.push(place),
                Answer::Again => answers[place] = Some(Settled::Busy),
            }
        }
        if !awaited.is_empty() {
            let finishes: Vec<&Settlement> = awaited.iter().map(|place| &settlements[*place]).collect();
            let settled = finish_together(access, core, &finishes).await?;
            for (place, settled) in awaited.into_iter().zip(settled) {
                answers[place] = Some(settled);
            }
        }
        for place in careful {
            answers[place] = Some(settle_singly(access, core, &settlements[place]).await?);
        }
    }
    in_order(settlements, answers)
}

/// Settles a batch by itself; what is locked comes back as [`Answer::Again`].
///
/// Those of which a lock was in the way the last time are apart from the others, which would have to wait for them again
/// and again while somebody has a long transaction.
async fn settle_unlocked(access: &Access, core: &Core, batch: &[Item<'_>]) -> Result<Vec<(usize, Answer)>, StateError> {
    let known = !core.locked.is_empty();
    let (met, fresh): (Vec<Item<'_>>, Vec<Item<'_>>) = batch
        .iter()
        .partition(|item| known && core.locked.contains(item.settlement.job));
    let mut answers = Vec::with_capacity(batch.len());
    match settle_part(access, core, &fresh, Locking::Fail).await? {
        Some(settled) => answers.extend(settled),
        // Somebody has one of the rows locked. Nothing was done; now row by row.
        None => answers.extend(
            settle_part(access, core, &fresh, Locking::Skip)
                .await?
                .unwrap_or_default(),
        ),
    }
    answers.extend(
        settle_part(access, core, &met, Locking::Skip)
            .await?
            .unwrap_or_default(),
    );
    let locked: HashSet<usize> = answers
        .iter()
        .filter(|(_, answer)| matches!(answer, Answer::Again))
        .map(|(place, _)| *place)
        .collect();
    if !locked.is_empty() || !core.locked.is_empty() {
        let jobs = batch.iter();
        core.locked
            .remember(jobs.map(|item| (item.settlement.job, locked.contains(&item.place))));
    }
    Ok(answers)
}

/// `None` if a lock was in the way and the statement was to fail then.
async fn settle_part(
    access: &Access,
    core: &Core,
    items: &[Item<'_>],
    locking: Locking,
) -> Result<Option<Vec<(usize, Answer)>>, StateError> {
    if items.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let mut work = Work::single(access).await?;
    match settle_batch(&mut work.session(), core, items, locking).await {
        Ok(answers) => {
            let answers = answers?;
            work.finish().await?;
            Ok(Some(answers))
        }
        // lock_not_available
        Err(error) if locking == Locking::Fail && has_code(&error, "55P03") => {
            work.undo().await?;
            Ok(None)
        }
        Err(error) => Err(translate(error)),
    }
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
/// one of the run has.
fn runs(settlements: &[Settlement]) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut ids: HashSet<JobId> = HashSet::new();
    let mut alone = true;
    for (place, settlement) in settlements.iter().enumerate() {
        let stands_alone = Item::of(place, settlement).is_none();
        let repeated = next(settlement).is_some_and(|next| !ids.insert(next.id));
        match runs.last_mut() {
            Some(run) if !alone && !stands_alone && !repeated => run.push(place),
            _ => {
                runs.push(vec![place]);
                ids.clear();
                ids.extend(next(settlement).map(|next| next.id));
            }
        }
        alone = stands_alone;
    }
    runs
}

/// Those of the places that may go through the statement, in order of job, and those that may not.
fn divide<'a>(settlements: &'a [Settlement], places: &[usize]) -> (Vec<Item<'a>>, Vec<usize>) {
    let mut batch = Vec::with_capacity(places.len());
    let mut careful = Vec::new();
    for place in places {
        match Item::of(*place, &settlements[*place]) {
            Some(item) => batch.push(item),
            None => careful.push(*place),
        }
    }
    batch.sort_unstable_by_key(|item| item.settlement.job);
    (batch, careful)
}

/// The outer error is that of the statement, for those who know what to make of it.
async fn settle_batch(
    session: &mut Session<'_>,
    core: &Core,
    items: &[Item<'_>],
    locking: Locking,
) -> Result<Result<Vec<(usize, Answer)>, StateError>, sqlx::Error> {
    if items.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let statement = match bind(core, locking, items) {
        Ok(statement) => statement,
        Err(error) => return Ok(Err(error)),
    };
    let rows = session.try_fetch(statement).await?;
    Ok(answer_batch(session, core, items, &rows).await)
}

async fn answer_batch(
    session: &mut Session<'_>,
    core: &Core,
    items: &[Item<'_>],
    rows: &[PgRow],
) -> Result<Vec<(usize, Answer)>, StateError> {
    let Some(found) = rows.first() else {
        return Err(corrupt("a settlement has no answer"));
    };
    let mut settled: Vec<Uuid> = row::get(found, 0)?;
    settled.sort_unstable();
    let is_settled = |item: &Item<'_>| settled.binary_search(&item.settlement.job.as_uuid()).is_ok();
    let now = Some(Timestamp::from_micros(row::get(found, 1)?));
    let applied = |item: &Item<'_>| {
        let next = next(item.settlement);
        let handed_over = next.and_then(handed_over).and(now);
        Answer::Settled(Settled::Applied(Applied {
            next: next.map(|_| handed_over.map_or(JobStatus::Pending, |_| JobStatus::Running)),
            handed_over,
            ..Applied::default()
        }))
    };
    let mut missing: Vec<&Item<'_>> = Vec::new();
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        match is_settled(item) {
            true => answers.push((item.place, applied(item))),
            false => missing.push(item),
        }
    }
    if missing.is_empty() {
        return Ok(answers);
    }
    let standings = standings(session, core, missing.iter().map(|item| item.settlement.job)).await?;
    let next_ids = missing.iter().filter_map(|item| Some(next(item.settlement)?.id));
    let taken = match missing.iter().any(|item| next(item.settlement).is_some()) {
        true => taken(session, core, next_ids).await?,
        false => HashSet::new(),
    };
    for item in missing {
        let standing = standings.get(&item.settlement.job);
        let next_taken = next(item.settlement).filter(|next| taken.contains(&next.id));
        answers.push((item.place, explain(item, standing, next_taken)));
    }
    Ok(answers)
}

/// Why an item was not settled.
fn explain(item: &Item<'_>, standing: Option<&Standing>, next_taken: Option<&NewJob>) -> Answer {
    match held(standing, item.fence) {
        Err(reason) => match standing {
            Some(standing) if standing.settled_fence == Some(item.fence.as_uuid()) => {
                Answer::Settled(Settled::Repeated(standing.status))
            }
            _ => Answer::Settled(Settled::Lost(reason)),
        },
        Ok(()) if item.kind() == FINISH && standing.is_some_and(|standing| standing.awaited) => Answer::Careful,
        Ok(()) => match next_taken {
            Some(next) => Answer::Settled(Settled::Refused(Refusal::IdTaken(next.id))),
            None => Answer::Again,
        },
    }
}

fn bind(core: &Core, locking: Locking, items: &[Item<'_>]) -> Result<crate::session::Query, StateError> {
    let size = items.len();
    let (mut jobs, mut fences, mut kinds) = (
        Vec::with_capacity(size),
        Vec::with_capacity(size),
        Vec::with_capacity(size),
    );
    let (mut workers, mut texts) = (Vec::with_capacity(size), Vec::with_capacity(size));
    let (mut times, mut delays) = (Vec::with_capacity(size), Vec::with_capacity(size));
    for item in items {
        jobs.push(item.settlement.job.as_uuid());
        fences.push(item.fence.as_uuid());
        kinds.push(item.kind());
        workers.push(item.worker);
        let (text, schedule) = match &item.settlement.outcome {
            Outcome::Finish { output } => (Some(Cow::Borrowed(output.as_str())), None),
            Outcome::Continue { next } => (None, Some(next.schedule)),
            Outcome::Retry { schedule, error } => (Some(Cow::Owned(storable(error))), Some(*schedule)),
            Outcome::Bury { error } => (Some(Cow::Owned(storable(error))), None),
            Outcome::Release => (None, None),
            Outcome::Snooze { schedule } => (None, Some(*schedule)),
        };
        texts.push(text);
        let (time, delay) = split(schedule.unwrap_or_default());
        times.push(time);
        delays.push(delay);
    }
    let takes = |item: &Item<'_>| next(item.settlement).and_then(handed_over).is_some();
    let shape = Shape::of(&kinds, items.iter().any(takes), locking);
    let mut statement = query(&core.settle_statement(shape))
        .bind(jobs)
        .bind(fences)
        .bind(kinds)
        .bind(workers)
        .bind(texts)
        .bind(times)
        .bind(delays);
    if shape.continues || shape.gives_back {
        statement = statement.bind(core.step());
    }
    if shape.continues {
        let (mut ids, mut types, mut priorities) = (Vec::new(), Vec::new(), Vec::new());
        let (mut max_attempts, mut traces, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        for next in items.iter().map(|item| next(item.settlement)) {
            ids.push(next.map(|next| next.id.as_uuid()));
            types.push(next.map(|next| core.type_number(&next.type_name)).transpose()?);
            priorities.push(next.map(|next| next.priority));
            max_attempts.push(next.and_then(|next| next.max_attempts).map(i64::from));
            traces.push(next.and_then(|next| next.trace_context.as_deref()));
            inputs.push(next.map(|next| next.input.as_str()));
        }
        statement = statement
            .bind(ids)
            .bind(types)
            .bind(priorities)
            .bind(max_attempts)
            .bind(traces)
            .bind(inputs);
    }
    if shape.hands_over {
        let (mut fences, mut leases) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for item in items {
            let taken = next(item.settlement).and_then(handed_over);
            fences.push(taken.map(|taken| taken.fence.as_uuid()));
            leases.push(taken.map(|taken| micros(taken.lease)));
        }
        statement = statement.bind(fences).bind(leases);
    }
    Ok(statement)
}
