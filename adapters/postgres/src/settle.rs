//! The ends of attempts. Those that touch nothing but their own chain go through one statement for the whole batch, those
//! that somebody waits for through [`finish_together`], and the rest, one by one, through [`settle_carefully`].

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use queuert::adapter::{Applied, Authority, NewJob, Outcome, Refusal, Settled, Settlement};
use queuert::{Fence, JobId, JobStatus, StateError, TypeName};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::careful::settle_carefully;
use crate::change::storable;
use crate::claim::{Standing, held, standings};
use crate::connect::Access;
use crate::core::Core;
use crate::create::{SCHEDULED, split, taken, writable};
use crate::error::{has_code, translate};
use crate::row;
use crate::session::{Session, query};
use crate::together::{finish_together, settle_singly};
use crate::transaction::Work;

/// How often a batch is looked at again within the caller's transaction before something is wrong.
const MANY_ROUNDS: usize = 1_000;

/// How long a batch waits for a lock before it passes over the row. Nobody who is at work has one for longer: a renewal,
/// a sweep or the start of a dependant is over after a few round trips and a write to the disk. And it is as long as a
/// worker lets an end rest that was passed over, so waiting costs no end more than twice what it saves. A transaction
/// that keeps its lock holds up each batch that meets a row of it for this long, and only the first time: see
/// [`LockedJobs`](crate::locked_jobs::LockedJobs).
const PATIENCE: Duration = Duration::from_millis(10);

/// What the statement for a batch must be able to do. Parts that no item needs are left out of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    finishes: bool,
    continues: bool,
    gives_back: bool,
    buries: bool,
    locking: Locking,
}

/// What becomes of a row that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Locking {
    /// It is waited for.
    #[default]
    Wait,
    /// It is passed over.
    Skip,
    /// The whole statement fails. Hardly ever does anybody else have a lock, and finding out by locking each row costs
    /// as much as deleting it.
    Fail,
}

/// The kinds of outcomes, as the statement knows them.
const FINISH: i16 = 0;
const CONTINUE: i16 = 1;
const RETRY: i16 = 2;
const BURY: i16 = 3;
const RELEASE: i16 = 4;
const SNOOZE: i16 = 5;

impl Shape {
    fn of(items: &[Item<'_>], locking: Locking) -> Self {
        let any = |kinds: &[i16]| items.iter().any(|item| kinds.contains(&item.kind()));
        Self {
            finishes: any(&[FINISH]),
            continues: any(&[CONTINUE]),
            gives_back: any(&[RETRY, RELEASE, SNOOZE]),
            buries: any(&[BURY]),
            locking,
        }
    }

    /// $1 jobs, $2 fences, $3 kinds, $4 workers, $5 outputs or errors, $6 times, $7 delays, $8 the ageing step; of next
    /// jobs $9 ids, $10 types, $11 priorities, $12 most attempts, $13 trace contexts, $14 inputs. The jobs that were
    /// settled.
    ///
    /// What an awaited chain's end has to do is not in here: the mark is on the row that is deleted, so it cannot be
    /// missed. A next job is written before the old one is given up, which is locked first for this, so that an id that
    /// is taken refuses the item and no error spoils the transaction. Everything after hangs on what the deletion
    /// returns.
    pub(crate) fn statement(self) -> String {
        let (next_arrays, next_columns, next_returned) = match self.continues {
            true => (
                ", $9::uuid[], $10::integer[], $11::smallint[], $12::bigint[], $13::text[], $14::text[]",
                ", next_id, next_type, next_priority, max_attempts, trace_context, input",
                ", a.next_id, a.next_type, a.next_priority",
            ),
            false => ("", "", ""),
        };
        let timeout = match self.locking {
            Locking::Fail => format!("set_config('lock_timeout', '{}ms', true)", PATIENCE.as_millis()),
            _ => "''".to_owned(),
        };
        let mine = match self.finishes {
            true => "r.id = a.id AND r.fence = a.fence AND NOT (a.kind = 0 AND r.awaited)",
            false => "r.id = a.id AND r.fence = a.fence",
        };
        let mut text = format!(
            "WITH clock AS MATERIALIZED (SELECT {{now}} AS now, {timeout} AS timeout), \
             u AS MATERIALIZED (SELECT u.*, {SCHEDULED} AS next_at FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], \
             $4::text[], $5::text[], $6::bigint[], $7::bigint[]{next_arrays}) \
             AS u(id, fence, kind, worker, text, at, delay{next_columns}) CROSS JOIN clock), "
        );
        let mut source = "u";
        if self.locking == Locking::Skip || self.continues {
            let skip = if self.locking == Locking::Skip {
                " SKIP LOCKED"
            } else {
                ""
            };
            text.push_str(&format!(
                "l AS MATERIALIZED (SELECT a.* FROM u AS a CROSS JOIN LATERAL (\
                 SELECT 1 FROM {{schema}}.running AS r WHERE {mine} FOR UPDATE{skip}) AS x), "
            ));
            source = "l";
        }
        if self.continues {
            text.push_str(
                "n AS (INSERT INTO {schema}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, \
                 created_at, blockers, priority, keyed, max_attempts, trace_context, input) \
                 SELECT l.next_id, j.chain_id, j.chain_index + 1, l.next_type, j.chain_type_id, j.chain_created_at, \
                 clock.now, 0, l.next_priority, j.keyed, l.max_attempts, l.trace_context, l.input \
                 FROM l JOIN {schema}.job AS j ON j.id = l.id CROSS JOIN clock WHERE l.kind = 1 \
                 ON CONFLICT (id) DO NOTHING RETURNING id), \
                 g AS MATERIALIZED (SELECT l.* FROM l WHERE l.kind <> 1 OR l.next_id = ANY (ARRAY(SELECT n.id FROM n))), ",
            );
            source = "g";
        }
        // The condition on the clock is checked before any row is read, so that the timeout is in force by then.
        text.push_str(&format!(
            "f AS (DELETE FROM {{schema}}.running AS r USING {source} AS a \
             WHERE {mine} AND (SELECT timeout FROM clock) IS NOT NULL \
             RETURNING r.id, r.scheduled_at, r.started_at, r.type_id, r.attempt, r.claims, r.priority, r.awaited, \
             a.fence, a.kind, a.worker, a.text, a.next_at{next_returned}), "
        ));
        if self.finishes || self.continues || self.buries {
            text.push_str(&format!(
                "p AS MATERIALIZED (SELECT f.*, j.chain_id, j.chain_type_id, j.chain_created_at, j.keyed \
                 FROM f JOIN {{schema}}.job AS j ON j.id = f.id{}), ",
                if self.gives_back {
                    " WHERE f.kind IN (0, 1, 3)"
                } else {
                    ""
                }
            ));
        }
        if self.finishes || self.continues {
            text.push_str(
                "result AS (INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, \
                 attempt, claims, final, started_at, settled_fence, completed_by, output) \
                 SELECT p.id, clock.now, p.chain_created_at, p.scheduled_at, p.chain_type_id, p.attempt, p.claims, \
                 p.kind = 0, p.started_at, p.fence, p.worker, p.text FROM p CROSS JOIN clock WHERE p.kind IN (0, 1)), ",
            );
        }
        if self.continues {
            text.push_str(&pending(
                "next",
                "p",
                "p.next_id, p.next_at, p.next_type, 0, 0, p.next_priority, p.awaited, \
                 NULL::bigint, NULL::uuid",
                "p.kind = 1",
                "p.next_at",
                "p.next_priority",
            ));
        }
        if self.gives_back {
            // What is released keeps its place.
            let at = "CASE WHEN f.kind = 4 THEN f.scheduled_at ELSE f.next_at END";
            let columns = format!(
                "f.id, {at}, f.type_id, CASE WHEN f.kind = 2 THEN f.attempt ELSE greatest(f.attempt - 1, 0) END, f.claims, \
                 f.priority, f.awaited, f.started_at, f.fence"
            );
            text.push_str(&pending("back", "f", &columns, "f.kind IN (2, 4, 5)", at, "f.priority"));
        }
        if self.buries {
            text.push_str(
                "stopped AS (INSERT INTO {schema}.stopped (id, ended_at, chain_created_at, scheduled_at, chain_type_id, \
                 attempt, claims, status, awaited, started_at, settled_fence) \
                 SELECT p.id, clock.now, p.chain_created_at, p.scheduled_at, p.chain_type_id, p.attempt, p.claims, 4, \
                 p.awaited, p.started_at, p.fence FROM p CROSS JOIN clock WHERE p.kind = 3), ",
            );
        }
        if self.buries || self.gives_back {
            text.push_str(
                "failure AS (INSERT INTO {schema}.failure (id, attempt, at, message) \
                 SELECT f.id, f.attempt, clock.now, f.text FROM f CROSS JOIN clock WHERE f.kind IN (2, 3) \
                 ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, at = excluded.at, \
                 message = excluded.message), ",
            );
        }
        if self.finishes || self.buries {
            text.push_str(
                "key AS (DELETE FROM {schema}.open_key AS k USING p \
                 WHERE k.chain_id = p.chain_id AND p.keyed AND p.kind IN (0, 3)), ",
            );
        }
        text.truncate(text.len() - 2);
        text.push_str(" SELECT f.id FROM f");
        text
    }
}

/// The two tables of pending jobs, fed from `source`.
fn pending(name: &str, source: &str, columns: &str, which: &str, at: &str, priority: &str) -> String {
    let names = "id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence";
    format!(
        "{name}_later AS (INSERT INTO {{schema}}.later ({names}) SELECT {columns} FROM {source} CROSS JOIN clock \
         WHERE {which} AND {at} > clock.now), \
         {name}_ready AS (INSERT INTO {{schema}}.ready ({names}, rank) SELECT {columns}, {at} - {priority} * $8::bigint \
         FROM {source} CROSS JOIN clock WHERE {which} AND {at} <= clock.now), "
    )
}

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
    let mut answers: HashMap<usize, Settled> = HashMap::with_capacity(settlements.len());
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
                    Answer::Settled(settled) => drop(answers.insert(place, settled)),
                    Answer::Careful => {
                        let settled = settle_carefully(session, core, &settlements[place]).await?;
                        answers.insert(place, settled);
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
    let mut answers: HashMap<usize, Settled> = HashMap::with_capacity(settlements.len());
    for run in runs(settlements) {
        let (batch, careful) = divide(settlements, &run);
        let mut awaited = Vec::new();
        for (place, answer) in settle_unlocked(access, core, &batch).await? {
            match answer {
                Answer::Settled(settled) => drop(answers.insert(place, settled)),
                Answer::Careful => awaited.push(place),
                Answer::Again => drop(answers.insert(place, Settled::Busy)),
            }
        }
        if !awaited.is_empty() {
            let finishes: Vec<&Settlement> = awaited.iter().map(|place| &settlements[*place]).collect();
            let settled = finish_together(access, core, &finishes).await?;
            answers.extend(awaited.into_iter().zip(settled));
        }
        for place in careful {
            answers.insert(place, settle_singly(access, core, &settlements[place]).await?);
        }
    }
    in_order(settlements, answers)
}

/// Settles a batch by itself; what is locked comes back as [`Answer::Again`].
///
/// Those of which a lock was in the way the last time are apart from the others, which would have to wait for them again
/// and again while somebody has a long transaction.
async fn settle_unlocked(access: &Access, core: &Core, batch: &[Item<'_>]) -> Result<Vec<(usize, Answer)>, StateError> {
    let (met, fresh): (Vec<Item<'_>>, Vec<Item<'_>>) =
        batch.iter().partition(|item| core.locked.contains(item.settlement.job));
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
    let mut locked = HashMap::new();
    for (place, answer) in &answers {
        locked.insert(*place, matches!(answer, Answer::Again));
    }
    let jobs = batch
        .iter()
        .map(|item| (item.settlement.job, locked.get(&item.place) == Some(&true)));
    core.locked.remember(jobs);
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

fn in_order(settlements: &[Settlement], mut answers: HashMap<usize, Settled>) -> Result<Vec<Settled>, StateError> {
    let answer = |(place, settlement): (usize, &Settlement)| {
        let missing = || crate::error::corrupt(format!("the end of job {} has no answer", settlement.job));
        answers.remove(&place).ok_or_else(missing)
    };
    settlements.iter().enumerate().map(answer).collect()
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
    let statement = match bind(core, Shape::of(items, locking), items) {
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
    let mut settled: HashSet<Uuid> = HashSet::with_capacity(rows.len());
    for found in rows {
        settled.insert(row::get(found, 0)?);
    }
    let applied = |item: &Item<'_>| {
        let next = next(item.settlement).map(|_| JobStatus::Pending);
        Answer::Settled(Settled::Applied(Applied {
            next,
            ..Applied::default()
        }))
    };
    let missing: Vec<&Item<'_>> = items
        .iter()
        .filter(|item| !settled.contains(&item.settlement.job.as_uuid()))
        .collect();
    let mut answers = Vec::with_capacity(items.len());
    for item in items
        .iter()
        .filter(|item| settled.contains(&item.settlement.job.as_uuid()))
    {
        answers.push((item.place, applied(item)));
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

fn bind(core: &Core, shape: Shape, items: &[Item<'_>]) -> Result<crate::session::Query, StateError> {
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
        workers.push(item.worker.to_owned());
        let (text, schedule) = match &item.settlement.outcome {
            Outcome::Finish { output } => (Some(output.as_str().to_owned()), None),
            Outcome::Continue { next } => (None, Some(next.schedule)),
            Outcome::Retry { schedule, error } => (Some(storable(error)), Some(*schedule)),
            Outcome::Bury { error } => (Some(storable(error)), None),
            Outcome::Release => (None, None),
            Outcome::Snooze { schedule } => (None, Some(*schedule)),
        };
        texts.push(text);
        let (time, delay) = split(schedule.unwrap_or_default());
        times.push(time);
        delays.push(delay);
    }
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
            traces.push(next.and_then(|next| next.trace_context.clone()));
            inputs.push(next.map(|next| next.input.as_str().to_owned()));
        }
        statement = statement
            .bind(ids)
            .bind(types)
            .bind(priorities)
            .bind(max_attempts)
            .bind(traces)
            .bind(inputs);
    }
    Ok(statement)
}
