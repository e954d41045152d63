//! The ends of attempts: what they write, what they create and whom they unblock.

use std::collections::{HashMap, HashSet};

use queuert::adapter::{Applied, Authority, NewJob, Outcome, Refusal, Settled, Settlement, UnblockedJob};
use queuert::{ChainId, Fence, JobId, JobStatus, Payload, Schedule, StateError, Timestamp, TypeName, WorkerId};
use sqlx::SqliteConnection;

use crate::claim::lost;
use crate::clock;
use crate::core::{Change, Core, ErrorChange, fetch, query};
use crate::create::{missing_blocker, waiting_status};
use crate::error::translate;
use crate::json::Batch;
use crate::row::{self, Head, NewRow};
use crate::values::Row;

/// Settles in the order given. A run of ends is one read and one or two writes; an end that creates a job with
/// blockers stands alone, because whether it closes a circle depends on all that came before it.
pub(crate) async fn settle(
    connection: &mut SqliteConnection,
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
        let finished = finish(connection, core, batch).await?;
        let others: Vec<&Settlement> = batch.iter().filter(|one| !finished.contains(&one.job)).collect();
        let mut answers = match others.is_empty() {
            true => Vec::new(),
            false => settle_run(connection, core, &others).await?,
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
async fn finish(
    connection: &mut SqliteConnection,
    core: &Core,
    settlements: &[Settlement],
) -> Result<HashSet<JobId>, StateError> {
    let mut jobs = HashSet::with_capacity(settlements.len());
    // Of two ends of one job the first counts, which one statement cannot promise.
    if !settlements.iter().all(|settlement| jobs.insert(settlement.job)) {
        return Ok(HashSet::new());
    }
    let plain: Vec<_> = settlements.iter().filter_map(plain).collect();
    let now = clock::now();
    let fill = |row: &mut Row, (job, fence, worker, output): &(JobId, Fence, &WorkerId, &Payload)| {
        row.id(job.as_uuid()).id(fence.as_uuid());
        row.text(worker.as_str()).text(output.as_str()).number(now.as_micros());
    };
    let rows = core.sql.finish.fetch(connection, &plain, fill).await;
    jobs.clear();
    for finished in rows.map_err(translate)? {
        jobs.insert(JobId::from_uuid(row::uuid(&finished, 0)?));
    }
    Ok(jobs)
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

async fn settle_run(
    connection: &mut SqliteConnection,
    core: &Core,
    settlements: &[&Settlement],
) -> Result<Vec<Settled>, StateError> {
    let found = find(connection, core, settlements).await?;
    let now = clock::now();
    let mut answers = Vec::with_capacity(settlements.len());
    let mut changes = Vec::new();
    let mut created = Vec::new();
    let mut edges = Vec::new();
    let mut finished: Vec<(usize, ChainId)> = Vec::new();
    let mut interrupted = Vec::new();
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
                false => core.chain_statuses(connection, next.blockers.iter().copied()).await?,
            };
            if let Some(refusal) = refused(connection, core, next, head.chain_id, &known).await? {
                answers.push(Settled::Refused(refusal));
                continue;
            }
            let status = waiting_status(&next.blockers, &known);
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
    core.change(connection, &changes, now).await?;
    if !created.is_empty() {
        let inserted = core.insert_jobs(connection, &created, now).await;
        inserted.map_err(translate)?;
    }
    for (job, blockers, known) in &edges {
        let completed = |chain: &ChainId| known.get(chain) == Some(&JobStatus::Completed);
        core.insert_blockers(connection, [(*job, *blockers)], completed).await?;
    }
    core.note_lost_leases(connection, interrupted).await?;
    unblock(connection, core, &finished, &mut answers, now).await?;
    Ok(answers)
}

async fn find(
    connection: &mut SqliteConnection,
    core: &Core,
    settlements: &[&Settlement],
) -> Result<Vec<Option<Found>>, StateError> {
    let mut place: i64 = -1;
    let fill = |row: &mut Row, settlement: &&Settlement| {
        place += 1;
        row.number(place)
            .id(settlement.job.as_uuid())
            .optional_id(next(settlement).map(|next| next.id.as_uuid()));
    };
    let mut found: Vec<Option<Found>> = settlements.iter().map(|_| None).collect();
    let rows = core.sql.heads.fetch(connection, settlements, fill).await;
    for one in rows.map_err(translate)? {
        let place = usize::try_from(row::get::<i64>(&one, 0)?).unwrap_or(usize::MAX);
        if let (Some(slot), Some(head)) = (found.get_mut(place), row::head(&one, 1)?) {
            *slot = Some(Found {
                head,
                awaited: row::get::<i64>(&one, 13)? != 0,
                next_taken: row::get::<i64>(&one, 14)? != 0,
            });
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
            if head.status == JobStatus::Running && head.fence == fence {
                Ok(head)
            } else if head.settled_fence == fence {
                Err(Settled::Repeated(head.status))
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
    connection: &mut SqliteConnection,
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
    let search = query(&core.sql.cycle)
        .bind(Batch::of_ids(next.blockers.iter().map(|chain| chain.as_uuid())))
        .bind(chain.as_uuid().as_bytes().to_vec());
    let mut roots = HashSet::new();
    for root in fetch(connection, search).await? {
        roots.insert(ChainId::from_uuid(row::uuid(&root, 0)?));
    }
    let first = next.blockers.iter().find(|blocker| roots.contains(blocker));
    Ok(first.map(|blocker| Refusal::BlockerCycle {
        job: next.id,
        chain: *blocker,
    }))
}

fn successor<'a>(next: &'a NewJob, head: &'a Head, status: JobStatus) -> NewRow<'a> {
    NewRow {
        job: next,
        chain_id: head.chain_id,
        chain_type: &head.chain_type,
        chain_index: head.chain_index + 1,
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
    connection: &mut SqliteConnection,
    core: &Core,
    finished: &[(usize, ChainId)],
    answers: &mut [Settled],
    now: Timestamp,
) -> Result<(), StateError> {
    // One chain after the other, so that each end reports the jobs that it was the last to unblock.
    for (place, chain) in finished {
        let ids = Batch::of_ids([chain.as_uuid()]);
        crate::core::execute(connection, query(&core.sql.mark_done).bind(ids.clone())).await?;
        let mut unblocked = Vec::new();
        let mut changes = Vec::new();
        for ready in fetch(connection, query(&core.sql.unblockable).bind(ids)).await? {
            let one = UnblockedJob {
                job: JobId::from_uuid(row::uuid(&ready, 1)?),
                chain: ChainId::from_uuid(row::uuid(&ready, 2)?),
                type_name: TypeName::from(row::get::<String>(&ready, 3)?),
            };
            let scheduled_at = Timestamp::from_micros(row::get(&ready, 4)?);
            changes.push(Change {
                seq: row::get(&ready, 0)?,
                status: JobStatus::Pending,
                latest: true,
                scheduled_at: scheduled_at.max(now),
                priority: i16::try_from(row::get::<i64>(&ready, 5)?).unwrap_or_default(),
                attempt: row::small(&ready, 6)?,
                ended_at: None,
                completed_by: None,
                error: ErrorChange::Keep,
                settled: None,
                output: None,
                chain: one.chain,
                chain_index: 0,
                keyed: false,
                chain_open: true,
            });
            unblocked.push(one);
        }
        core.change(connection, &changes, now).await?;
        if let Some(Settled::Applied(applied)) = answers.get_mut(*place) {
            applied.unblocked = unblocked;
        }
    }
    Ok(())
}
