//! The ends of attempts: what they write, what they create and whom they unblock.

use std::collections::{HashMap, HashSet};

use queuert::adapter::rules::closing_blocker;
use queuert::adapter::{Applied, Authority, NewJob, Outcome, Refusal, Repeated, Settled, Settlement, UnblockedJob};
use queuert::{ChainId, Fence, JobId, JobStatus, Payload, Schedule, StateError, Timestamp, TypeName, WorkerId};
use uuid::Uuid;

use crate::claim::lost;
use crate::clock;
use crate::core::{Change, Core, ErrorChange};
use crate::create::{missing_blocker, waiting_status};
use crate::db::{Db, query};
use crate::json::Batch;
use crate::row::{self, Head, NewRow};
use crate::sabotage;

/// Settles in the order given. A run of ends is one read and one or two writes; an end that creates a job with
/// blockers stands alone, because whether it closes a circle depends on all that came before it.
pub(crate) async fn settle(
    db: &mut Db<'_>,
    core: &Core,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    let mut settled = Vec::with_capacity(settlements.len());
    let mut rest = settlements;
    while !rest.is_empty() {
        let run = rest.iter().position(|settlement| !blockers(settlement).is_empty());
        let run = match run {
            Some(0) => 1,
            Some(next) => next,
            None => rest.len(),
        };
        let (batch, after) = rest.split_at(run);
        let finished = finish(db, core, batch).await?;
        let others: Vec<&Settlement> = batch.iter().filter(|one| !finished.contains(&one.job)).collect();
        let mut answers = match others.is_empty() {
            true => Vec::new(),
            false => settle_run(db, core, &others).await?,
        }
        .into_iter();
        settled.extend(batch.iter().filter_map(|one| match finished.contains(&one.job) {
            true => Some(Settled::Applied(Applied::default())),
            false => answers.next(),
        }));
        rest = after;
    }
    Ok(settled)
}

/// Finishes, in one statement, the jobs for whose end nothing else has to be looked up or written, and gives their ids.
async fn finish(db: &mut Db<'_>, core: &Core, settlements: &[Settlement]) -> Result<HashSet<JobId>, StateError> {
    let mut jobs = HashSet::with_capacity(settlements.len());
    // Of two ends of one job the first counts, which one statement cannot promise.
    if !settlements.iter().all(|settlement| jobs.insert(settlement.job)) || sabotage::fencing_is_off() {
        return Ok(HashSet::new());
    }
    let plain: Vec<_> = settlements.iter().filter_map(plain).collect();
    let now = clock::now();
    let finish = core
        .sql
        .finish
        .execute(db, &plain, |values, (job, fence, worker, output)| {
            values.add(job.as_uuid()).add(fence.as_uuid());
            values.add(worker.as_str()).add(output.as_str()).number(now.as_micros());
        });
    let changed = finish.await?;
    if changed == 0 || changed == plain.len() {
        let finished = plain.iter().take(changed);
        return Ok(finished.map(|(job, ..)| *job).collect());
    }
    let finished = core.sql.finished_now.fetch(
        db,
        &plain,
        |values, (job, fence, ..)| {
            values.add(job.as_uuid()).add(fence.as_uuid()).number(now.as_micros());
        },
        |found| Ok(JobId::from_uuid(found.get(0)?)),
    );
    Ok(finished.await?.into_iter().collect())
}

/// The end of a chain by its attempt.
fn plain(settlement: &Settlement) -> Option<(JobId, Fence, &WorkerId, &Payload)> {
    match (&settlement.authority, &settlement.outcome) {
        (Authority::Fence { fence, worker }, Outcome::Finish { output }) => {
            Some((settlement.job, *fence, worker, output))
        }
        _ => None,
    }
}

fn next(settlement: &Settlement) -> Option<&NewJob> {
    match &settlement.outcome {
        Outcome::Continue { next } => Some(next),
        _ => None,
    }
}

fn blockers(settlement: &Settlement) -> &[ChainId] {
    next(settlement).map_or(&[], |next| &next.blockers)
}

/// A job as it was found.
struct Found {
    head: Head,
    /// Whether jobs wait for its chain.
    awaited: bool,
    /// Whether the id of the next job exists.
    next_taken: bool,
}

async fn settle_run(db: &mut Db<'_>, core: &Core, settlements: &[&Settlement]) -> Result<Vec<Settled>, StateError> {
    let found = find(db, core, settlements).await?;
    let now = clock::now();
    let mut answers = Vec::with_capacity(settlements.len());
    let mut changes = Vec::new();
    let mut created = Vec::new();
    let mut edges = Vec::new();
    let mut finished: Vec<(usize, ChainId)> = Vec::new();
    let mut interrupted = Vec::new();
    let mut handed_over = Vec::new();
    let mut new_ids = HashSet::new();
    for (place, (settlement, found)) in settlements.iter().zip(&found).enumerate() {
        let head = match authorise(settlement, found.as_ref().map(|found| &found.head)) {
            Ok(head) => head,
            Err(answer) => {
                answers.push(answer);
                continue;
            }
        };
        let found = found.as_ref();
        let running = head.status == JobStatus::Running;
        let mut applied = Applied {
            interrupted: running && settlement.authority == Authority::Outside,
            ..Applied::default()
        };
        if let Some(next) = next(settlement) {
            if found.is_some_and(|found| found.next_taken) || !new_ids.insert(next.id) {
                answers.push(Settled::Refused(Refusal::IdTaken(next.id)));
                continue;
            }
            let known = match next.blockers.is_empty() {
                true => HashMap::new(),
                false => core.chain_statuses(db, next.blockers.iter().copied()).await?,
            };
            if let Some(refusal) = refused(db, core, next, head.chain_id, &known).await? {
                answers.push(Settled::Refused(refusal));
                continue;
            }
            let mut status = waiting_status(&next.blockers, &known);
            if let Some(taken) = HandedOver::of(settlement, next, status, now) {
                status = JobStatus::Running;
                applied.handed_over = Some(now);
                handed_over.push(taken);
            }
            applied.next = Some(status);
            created.push(successor(next, head, status));
            edges.push((next.id, next.blockers.as_slice(), known));
        }
        if matches!(settlement.outcome, Outcome::Finish { .. }) && found.is_some_and(|found| found.awaited) {
            finished.push((place, head.chain_id));
        }
        if applied.interrupted {
            interrupted.push(settlement.job);
        }
        changes.push(change(settlement, head, now));
        answers.push(Settled::Applied(applied));
    }
    // The old job gives up being the latest before the new one becomes it.
    core.change(db, &changes, now).await?;
    core.insert_jobs(db, &created, now).await?;
    let hand_over = core.sql.hand_over.execute(db, &handed_over, |values, taken| {
        values.add(taken.job.as_uuid()).number(now.as_micros());
        values.add(taken.worker.as_str()).add(taken.fence.as_uuid());
        values.number(taken.until.as_micros());
    });
    hand_over.await?;
    for (job, blockers, known) in &edges {
        let completed = |chain: &ChainId| known.get(chain) == Some(&JobStatus::Completed);
        core.insert_blockers(db, [(*job, *blockers)], completed).await?;
    }
    core.note_lost_leases(db, interrupted).await?;
    unblock(db, core, &finished, &mut answers, now).await?;
    recall(db, core, settlements, &mut answers).await?;
    Ok(answers)
}

/// A job that the worker has claimed which creates it.
struct HandedOver<'a> {
    job: JobId,
    worker: &'a WorkerId,
    fence: Fence,
    until: Timestamp,
}

impl<'a> HandedOver<'a> {
    fn of(settlement: &'a Settlement, next: &NewJob, status: JobStatus, now: Timestamp) -> Option<Self> {
        let (Authority::Fence { worker, .. }, Some(hand_over)) = (&settlement.authority, next.hand_over) else {
            return None;
        };
        let due = status == JobStatus::Pending && next.schedule.resolve(now) <= now;
        due.then(|| Self {
            job: next.id,
            worker,
            fence: hand_over.fence,
            until: now.saturating_add(hand_over.lease),
        })
    }
}

async fn find(db: &mut Db<'_>, core: &Core, settlements: &[&Settlement]) -> Result<Vec<Option<Found>>, StateError> {
    let mut place: i64 = -1;
    let rows = core.sql.heads.fetch(
        db,
        settlements,
        |values, settlement| {
            place += 1;
            values
                .number(place)
                .add(settlement.job.as_uuid())
                .add(next(settlement).map(|next| next.id.as_uuid()));
        },
        |row| {
            let found = Found {
                head: row::head(row, 1)?,
                awaited: row.get::<i64>(14)? != 0,
                next_taken: row.get::<i64>(15)? != 0,
            };
            Ok((row.get::<i64>(0)?, found))
        },
    );
    let mut found: Vec<Option<Found>> = settlements.iter().map(|_| None).collect();
    for (place, one) in rows.await? {
        if let Some(slot) = usize::try_from(place).ok().and_then(|place| found.get_mut(place)) {
            *slot = Some(one);
        }
    }
    Ok(found)
}

/// The job if the caller may settle it, else the answer.
fn authorise<'a>(settlement: &Settlement, head: Option<&'a Head>) -> Result<&'a Head, Settled> {
    let gone = || Settled::Lost(lost(None));
    let head = head.ok_or_else(gone)?;
    match &settlement.authority {
        Authority::Fence { fence, .. } => {
            let fence = Some(fence.as_uuid());
            if head.status == JobStatus::Running && (head.fence == fence || sabotage::fencing_is_off()) {
                Ok(head)
            } else if head.settled_fence == fence {
                Err(Settled::Repeated(Repeated::new(head.status)))
            } else {
                Err(Settled::Lost(lost(Some(head.status))))
            }
        }
        // An open job is always the latest of its chain.
        Authority::Outside if head.status.is_open() => Ok(head),
        Authority::Outside => Err(Settled::Lost(lost(Some(head.status)))),
    }
}

/// Whether the next job may not be created: a blocker is missing, or waits for this very chain.
async fn refused(
    db: &mut Db<'_>,
    core: &Core,
    next: &NewJob,
    chain: ChainId,
    known: &HashMap<ChainId, JobStatus>,
) -> Result<Option<Refusal>, StateError> {
    if next.blockers.is_empty() {
        return Ok(None);
    }
    if let Some(refusal) = missing_blocker(next, known) {
        return Ok(Some(refusal));
    }
    let blockers = Batch::of_ids(next.blockers.iter().map(|chain| chain.as_uuid()));
    let way = db.fetch(query(&core.sql.way).bind(blockers), |found| found.get::<Uuid>(0));
    let way = way.await?;
    if !way.contains(&chain.as_uuid()) {
        return Ok(None);
    }
    let mut edges: HashMap<ChainId, Vec<ChainId>> = HashMap::new();
    let search = query(&core.sql.way_edges).bind(Batch::of_ids(way));
    let found = db.fetch(search, |found| {
        Ok((ChainId::from_uuid(found.get(0)?), ChainId::from_uuid(found.get(1)?)))
    });
    for (from, to) in found.await? {
        edges.entry(from).or_default().push(to);
    }
    let ahead = |chain: ChainId| edges.get(&chain).into_iter().flatten().copied();
    let closing = closing_blocker(&next.blockers, chain, ahead);
    Ok(closing.map(|blocker| Refusal::BlockerCycle {
        job: next.id,
        chain: blocker,
    }))
}

fn successor<'a>(next: &'a NewJob, head: &'a Head, status: JobStatus) -> NewRow<'a> {
    NewRow {
        job: next,
        chain_id: head.chain_id,
        chain_type: &head.chain_type,
        chain_index: head.chain_index.saturating_add(1),
        chain_created_at: head.chain_created_at,
        status,
        deduplication_key: None,
        keyed: head.keyed,
    }
}

/// What the end writes to the job itself.
fn change(settlement: &Settlement, head: &Head, now: Timestamp) -> Change {
    let mut change = Change::of_head(head);
    let worker = match &settlement.authority {
        Authority::Fence { fence, worker } => {
            change.settled = Some(*fence);
            Some(worker.as_str().to_owned())
        }
        Authority::Outside => None,
    };
    let failed = |message: &str| ErrorChange::Set {
        attempt: head.attempt,
        at: now,
        message: message.to_owned(),
    };
    // One that was blocked, and is settled from outside, stays blocked.
    let waiting = match head.status {
        JobStatus::Blocked => JobStatus::Blocked,
        _ => JobStatus::Pending,
    };
    let unspent = head
        .attempt
        .saturating_sub(u32::from(head.status == JobStatus::Running));
    let at = |schedule: &Schedule| schedule.resolve(now);
    match &settlement.outcome {
        Outcome::Finish { output } => {
            change.status = JobStatus::Completed;
            change.ended_at = Some(now);
            change.completed_by = worker;
            change.error = ErrorChange::Clear;
            change.output = Some(output.clone());
            change.chain_open = false;
        }
        Outcome::Continue { .. } => {
            change.status = JobStatus::Completed;
            change.latest = false;
            change.ended_at = Some(now);
            change.completed_by = worker;
            change.error = ErrorChange::Clear;
        }
        Outcome::Retry { schedule, error } => {
            change.status = waiting;
            change.scheduled_at = at(schedule);
            change.error = failed(error);
        }
        Outcome::Bury { error } => {
            change.status = JobStatus::Dead;
            change.ended_at = Some(now);
            change.error = failed(error);
            change.chain_open = false;
        }
        Outcome::Release => {
            change.status = waiting;
            change.rank = Some(head.rank);
            change.attempt = unspent;
        }
        Outcome::Snooze { schedule } => {
            change.status = waiting;
            change.scheduled_at = at(schedule);
            change.attempt = unspent;
        }
    }
    change
}

/// Makes the jobs pending whose last blocker has completed now. All in one transaction with the only write lock, so
/// nobody else decides about them.
async fn unblock(
    db: &mut Db<'_>,
    core: &Core,
    finished: &[(usize, ChainId)],
    answers: &mut [Settled],
    now: Timestamp,
) -> Result<(), StateError> {
    // One chain after the other, so that each end reports the jobs that it was the last to unblock.
    for (place, chain) in finished {
        let ids = Batch::of_ids([chain.as_uuid()]);
        db.execute(query(&core.sql.mark_done).bind(ids.as_str())).await?;
        let ready = db.fetch(query(&core.sql.unblockable).bind(ids.as_str()), |ready| {
            let one = UnblockedJob {
                job: JobId::from_uuid(ready.get(1)?),
                chain: ChainId::from_uuid(ready.get(2)?),
                type_name: TypeName::from(ready.get::<String>(3).unwrap_or_default()),
            };
            let scheduled_at = Timestamp::from_micros(ready.get(4)?);
            let change = Change {
                seq: ready.get(0)?,
                status: JobStatus::Pending,
                latest: true,
                scheduled_at: scheduled_at.max(now),
                rank: None,
                priority: i16::try_from(ready.get::<i64>(5)?).unwrap_or_default(),
                attempt: u32::try_from(ready.get::<i64>(6)?).unwrap_or_default(),
                ended_at: None,
                completed_by: None,
                error: ErrorChange::Keep,
                settled: None,
                output: None,
                chain: one.chain,
                chain_index: 0,
                keyed: false,
                chain_open: true,
            };
            Ok((one, change))
        });
        let (unblocked, changes): (Vec<_>, Vec<_>) = ready.await?.into_iter().unzip();
        core.change(db, &changes, now).await?;
        if !unblocked.is_empty() {
            let jobs = Batch::of_ids(unblocked.iter().map(|one| one.job.as_uuid()));
            let mark = query(&core.sql.mark_last).bind(chain.as_uuid()).bind(jobs);
            db.execute(mark).await?;
        }
        if let Some(Settled::Applied(applied)) = answers.get_mut(*place) {
            applied.unblocked = unblocked;
        }
    }
    Ok(())
}

/// Adds to the answers of ends that were written before what those ends did.
async fn recall(
    db: &mut Db<'_>,
    core: &Core,
    settlements: &[&Settlement],
    answers: &mut [Settled],
) -> Result<(), StateError> {
    let completed =
        |settled: &Settled| matches!(settled, Settled::Repeated(repeated) if repeated.status == JobStatus::Completed);
    let places: Vec<usize> = (0..answers.len()).filter(|place| completed(&answers[*place])).collect();
    if places.is_empty() {
        return Ok(());
    }
    let ids = Batch::of_ids(places.iter().map(|place| settlements[*place].job.as_uuid()));
    let unblocked = db.fetch(query(&core.sql.unblocked_by).bind(ids.as_str()), |found| {
        let one = UnblockedJob {
            job: JobId::from_uuid(found.get(1)?),
            chain: ChainId::from_uuid(found.get(2)?),
            type_name: TypeName::from(found.get::<String>(3)?),
        };
        Ok((found.get::<i64>(0)?, one))
    });
    let unblocked = unblocked.await?;
    let blocked = db.fetch(query(&core.sql.continued_blocked).bind(ids.as_str()), |found| {
        found.get::<i64>(0)
    });
    let blocked = blocked.await?;
    let place = |key: i64| usize::try_from(key).ok().and_then(|key| places.get(key)).copied();
    for (key, one) in unblocked {
        if let Some(Settled::Repeated(repeated)) = place(key).and_then(|place| answers.get_mut(place)) {
            repeated.unblocked.push(one);
        }
    }
    for key in blocked {
        if let Some(Settled::Repeated(repeated)) = place(key).and_then(|place| answers.get_mut(place)) {
            repeated.next_blocked = true;
        }
    }
    Ok(())
}
