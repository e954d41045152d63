//! The hot way to settle: a batch of ends by attempts, in one statement.

use std::borrow::Cow;
use std::collections::HashSet;

use queuert::adapter::{Applied, Authority, HandOver, NewJob, Outcome, Refusal, Settled, Settlement};
use queuert::{Fence, JobStatus, Schedule, StateError, Timestamp};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::row;
use crate::statements::settle::{BURY, CONTINUE, FINISH, Locking, Parameter, RELEASE, RETRY, SNOOZE, Shape};
use crate::store::{Store, micros};
use crate::type_ids::Expected;
use crate::verbs::create::{split, taken};
use crate::verbs::lease::{Standing, authorise, standings};
use crate::verbs::transition::storable;

/// A settlement by an attempt that may go through the statement for batches.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) place: usize,
    pub(crate) settlement: &'a Settlement,
    fence: Fence,
    worker: &'a str,
}

impl<'a> Item<'a> {
    /// `None` for an end that has to look at other chains.
    pub(crate) fn of(place: usize, settlement: &'a Settlement) -> Option<Self> {
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

/// How the next job is claimed by the worker that creates it, if it may be. A job that is scheduled for a time goes through
/// the queue, even if the time has passed: only the server knows whether it is due.
fn handed_over(next: &NewJob) -> Option<HandOver> {
    next.hand_over
        .filter(|_| next.schedule == Schedule::Now && next.blockers.is_empty())
}

fn blockers(settlement: &Settlement) -> &[queuert::ChainId] {
    next(settlement).map_or(&[], |next| &next.blockers)
}

/// What became of an item of a batch.
pub(crate) enum Answer {
    Settled(Settled),
    /// It has to go the general way.
    General,
    /// Another transaction has it locked, or, in the caller's transaction, it changed between two statements.
    Again,
}

/// Divides settlements into the items that may go through the statement, in order of job, and the places of the others.
pub(crate) fn divide<'a>(settlements: &'a [Settlement], places: &[usize]) -> (Vec<Item<'a>>, Vec<usize>) {
    let mut batch = Vec::with_capacity(places.len());
    let mut general = Vec::new();
    for place in places {
        match Item::of(*place, &settlements[*place]) {
            Some(item) => batch.push(item),
            None => general.push(*place),
        }
    }
    batch.sort_unstable_by_key(|item| item.settlement.job);
    (batch, general)
}

/// Runs the statement. The outer error is that of the statement, which the caller may retry.
pub(crate) async fn settle_batch(
    session: &mut Session<'_>,
    store: &Store,
    items: &[Item<'_>],
    locking: Locking,
) -> Result<Result<Vec<(usize, Answer)>, StateError>, sqlx::Error> {
    if items.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let next_types = || items.iter().filter_map(|item| Some(&next(item.settlement)?.type_name));
    let mut expected = store.expected(next_types());
    loop {
        let rows = session.try_fetch(bind(store, locking, items, &expected)).await?;
        let known = rows
            .first()
            .map(|found| row::get::<bool>(found, "types_exist"))
            .transpose();
        if expected.names.is_empty() || !matches!(known, Ok(Some(false))) {
            return Ok(answer_batch(session, store, items, &rows).await);
        }
        // Once the types exist, nothing is left to check: the caller's snapshot may be too old to see them.
        if let Err(error) = store.intern_again(std::mem::take(&mut expected)).await {
            return Ok(Err(error));
        }
    }
}

async fn answer_batch(
    session: &mut Session<'_>,
    store: &Store,
    items: &[Item<'_>],
    rows: &[PgRow],
) -> Result<Vec<(usize, Answer)>, StateError> {
    let Some(found) = rows.first() else {
        return Err(corrupt("a settlement has no answer"));
    };
    let mut settled: Vec<Uuid> = row::get(found, "settled")?;
    let all = settled.len() == items.len();
    if !all {
        settled.sort_unstable();
    }
    let is_settled = |item: &Item<'_>| all || settled.binary_search(&item.settlement.job.as_uuid()).is_ok();
    let now = Some(Timestamp::from_micros(row::get(found, "now")?));
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
        if is_settled(item) {
            answers.push((item.place, applied(item)))
        } else {
            missing.push(item)
        }
    }
    if missing.is_empty() {
        return Ok(answers);
    }
    let standings = standings(session, store, missing.iter().map(|item| item.settlement.job)).await?;
    let next_ids = missing.iter().filter_map(|item| Some(next(item.settlement)?.id));
    let taken = if missing.iter().any(|item| next(item.settlement).is_some()) {
        taken(session, store, next_ids).await?
    } else {
        HashSet::new()
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
    let head = standing.map(|standing| &standing.head);
    if let Err(settled) = authorise(&item.settlement.authority, head) {
        return Answer::Settled(settled);
    }
    if item.kind() == FINISH && standing.is_some_and(|standing| standing.awaited) {
        return Answer::General;
    }
    match next_taken {
        Some(next) => Answer::Settled(Settled::Refused(Refusal::IdTaken(next.id))),
        None => Answer::Again,
    }
}

fn bind(store: &Store, locking: Locking, items: &[Item<'_>], expected: &Expected) -> crate::connection::session::Query {
    let each = |item: &Item<'_>| next(item.settlement).and_then(handed_over);
    let kinds: Vec<i16> = items.iter().map(Item::kind).collect();
    let hands_over = items.iter().any(|item| each(item).is_some());
    let one_worker = items.windows(2).all(|pair| pair[0].worker == pair[1].worker);
    let shape = Shape::of(&kinds, hands_over, one_worker, locking);
    let mut statement = query(&store.settle_statement(shape));
    for parameter in shape.parameters() {
        let next = || items.iter().map(|item| next(item.settlement));
        let schedules = || items.iter().map(|item| split(schedule(item)));
        statement = match parameter {
            Parameter::Jobs => statement.bind(collect(items, |item| item.settlement.job.as_uuid())),
            Parameter::Fences => statement.bind(collect(items, |item| item.fence.as_uuid())),
            Parameter::Kinds => statement.bind(kinds.as_slice()),
            Parameter::Worker => statement.bind(items.first().map(|item| item.worker)),
            Parameter::Workers => statement.bind(collect(items, |item| item.worker)),
            Parameter::Texts => statement.bind(collect(items, text)),
            Parameter::Times => statement.bind(schedules().map(|(time, _)| time).collect::<Vec<_>>()),
            Parameter::Delays => statement.bind(schedules().map(|(_, delay)| delay).collect::<Vec<_>>()),
            Parameter::Step => statement.bind(store.step()),
            Parameter::KnownTypeIds => statement.bind(expected.numbers.clone()),
            Parameter::KnownTypeNames => statement.bind(expected.names.clone()),
            Parameter::NextIds => statement.bind(next().map(|next| Some(next?.id.as_uuid())).collect::<Vec<_>>()),
            Parameter::NextTypes => {
                let types = next().map(|next| next.map(|next| store.type_id(&next.type_name)));
                statement.bind(types.collect::<Vec<_>>())
            }
            Parameter::NextPriorities => statement.bind(next().map(|next| Some(next?.priority)).collect::<Vec<_>>()),
            Parameter::NextMaxAttempts => {
                statement.bind(next().map(|next| next?.max_attempts.map(i64::from)).collect::<Vec<_>>())
            }
            Parameter::NextTraces => {
                statement.bind(next().map(|next| next?.trace_context.as_deref()).collect::<Vec<_>>())
            }
            Parameter::NextInputs => statement.bind(next().map(|next| Some(next?.input.as_str())).collect::<Vec<_>>()),
            Parameter::NextFences => statement.bind(collect(items, |item| Some(each(item)?.fence.as_uuid()))),
            Parameter::NextLeases => statement.bind(collect(items, |item| Some(micros(each(item)?.lease)))),
        };
    }
    statement
}

fn collect<'a, T>(items: &[Item<'a>], of: impl Fn(&Item<'a>) -> T) -> Vec<T> {
    items.iter().map(of).collect()
}

/// The output, or the error.
fn text<'a>(item: &Item<'a>) -> Option<Cow<'a, str>> {
    match &item.settlement.outcome {
        Outcome::Finish { output } => Some(Cow::Borrowed(output.as_str())),
        Outcome::Retry { error, .. } | Outcome::Bury { error } => Some(Cow::Owned(storable(error))),
        Outcome::Continue { .. } | Outcome::Release | Outcome::Snooze { .. } => None,
    }
}

/// When the next job, or the job itself, is due.
fn schedule(item: &Item<'_>) -> Schedule {
    match &item.settlement.outcome {
        Outcome::Continue { next } => next.schedule,
        Outcome::Retry { schedule, .. } | Outcome::Snooze { schedule } => *schedule,
        Outcome::Finish { .. } | Outcome::Bury { .. } | Outcome::Release => Schedule::Now,
    }
}
