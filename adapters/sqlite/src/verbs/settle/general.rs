//! Ends of attempts that create jobs, unblock others, fail, or come from outside. A batch takes one read and a few writes.

use std::collections::{HashMap, HashSet};

use queuert::adapter::rules::{self, JobHead};
use queuert::adapter::{Applied, Authority, NewJob, Outcome, Refusal, Settled, Settlement, UnblockedJob};
use queuert::{AbortReason, ChainId, JobId, JobStatus, Lease, StateError, Timestamp, TypeName};
use uuid::Uuid;

use super::{next_job, repeated};
use crate::clock;
use crate::connection::{Connection, query};
use crate::notify::notices;
use crate::row::{self, JobToSettle, NewRow};
use crate::sabotage;
use crate::statements::json_rows::JsonRows;
use crate::store::Store;
use crate::verbs::create::{chain_statuses, insert_blockers, insert_jobs};
use crate::verbs::transition::{self, Transition};

/// What a batch writes.
#[derive(Default)]
struct Writes<'a> {
    transitions: Vec<Transition>,
    created: Vec<NewRow<'a>>,
    /// Created jobs that their workers have claimed.
    handed_over: Vec<(JobId, Lease)>,
    /// Created jobs with their blockers, and the status of these.
    blockers: Vec<(&'a NewJob, HashMap<ChainId, JobStatus>)>,
    /// Jobs whose running attempts lose them.
    interrupted: Vec<JobId>,
    /// Chains that complete and that jobs wait for, with the places of their settlements.
    completed: Vec<(usize, ChainId)>,
}

pub(super) async fn settle(
    connection: &mut Connection<'_>,
    store: &Store,
    settlements: &[&Settlement],
) -> Result<Vec<Settled>, StateError> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    let jobs = read_jobs(connection, store, settlements).await?;
    let now = clock::now();
    let mut answers = Vec::with_capacity(settlements.len());
    let mut writes = Writes::default();
    let mut new_ids = HashSet::new();
    for (place, (settlement, job)) in settlements.iter().zip(&jobs).enumerate() {
        let (job, head) = match authorise(settlement, job.as_ref()) {
            Ok(authorised) => authorised,
            Err(answer) => {
                answers.push(answer);
                continue;
            }
        };
        let mut applied = Applied {
            interrupted: rules::interrupts(&settlement.authority, &head),
            ..Applied::default()
        };
        if let Some(next) = next_job(settlement) {
            let id_taken = job.next_exists || !new_ids.insert(next.id);
            let statuses = chain_statuses(connection, store, next.blockers.iter().copied()).await?;
            if let Err(refusal) = check_next(connection, store, next, job.chain_id, id_taken, &statuses).await? {
                answers.push(Settled::Refused(refusal));
                continue;
            }
            let is_completed = |chain| statuses.get(&chain) == Some(&JobStatus::Completed);
            let mut status = rules::waiting_status(&next.blockers, is_completed);
            if let Some(lease) = rules::hand_over(&settlement.authority, next, status, now) {
                status = JobStatus::Running;
                applied.handed_over = Some(now);
                writes.handed_over.push((next.id, lease));
            }
            applied.next = Some(status);
            writes.created.push(successor(next, job, status));
            writes.blockers.push((next, statuses));
        }
        if matches!(settlement.outcome, Outcome::Finish { .. }) && job.awaited {
            writes.completed.push((place, job.chain_id));
        }
        if applied.interrupted {
            writes.interrupted.push(settlement.job);
        }
        let change = rules::settle(settlement, &head, now);
        writes.transitions.push(Transition::of_settlement(job, change));
        answers.push(Settled::Applied(applied));
    }
    write(connection, store, &writes, &mut answers, now).await?;
    repeated::complete_answers(connection, store, settlements, &mut answers).await?;
    Ok(answers)
}

async fn write(
    connection: &mut Connection<'_>,
    store: &Store,
    writes: &Writes<'_>,
    answers: &mut [Settled],
    now: Timestamp,
) -> Result<(), StateError> {
    // The old job stops being the latest of its chain before the new job becomes it.
    transition::apply(connection, store, &writes.transitions, now).await?;
    insert_jobs(connection, store, &writes.created, now).await?;
    let hand_over = store
        .statements
        .hand_over_jobs
        .execute(connection, &writes.handed_over, |values, (job, lease)| {
            values
                .add(job.as_uuid())
                .number(now.as_micros())
                .add(lease.owner.as_str())
                .add(lease.fence.as_uuid())
                .number(lease.until.as_micros());
        });
    hand_over.await?;
    for (next, statuses) in &writes.blockers {
        insert_blockers(connection, store, [(next.id, next.blockers.as_slice())], statuses).await?;
    }
    notices::insert_lost_leases(connection, store, writes.interrupted.iter().copied()).await?;
    unblock(connection, store, &writes.completed, answers, now).await
}

/// The jobs of the settlements, in the same order; `None` for a job that does not exist.
async fn read_jobs(
    connection: &mut Connection<'_>,
    store: &Store,
    settlements: &[&Settlement],
) -> Result<Vec<Option<JobToSettle>>, StateError> {
    let mut place: i64 = -1;
    let rows = store.statements.jobs_to_settle.fetch(
        connection,
        settlements,
        |values, settlement| {
            place += 1;
            values
                .number(place)
                .add(settlement.job.as_uuid())
                .add(next_job(settlement).map(|next| next.id.as_uuid()));
        },
        row::job_to_settle,
    );
    let mut jobs: Vec<Option<JobToSettle>> = settlements.iter().map(|_| None).collect();
    for job in rows.await? {
        if let Some(slot) = usize::try_from(job.place).ok().and_then(|place| jobs.get_mut(place)) {
            *slot = Some(job);
        }
    }
    Ok(jobs)
}

/// The job if the settlement may be applied, else the answer.
fn authorise<'a>(settlement: &Settlement, job: Option<&'a JobToSettle>) -> Result<(&'a JobToSettle, JobHead), Settled> {
    let head = job.map(|job| {
        let head = JobHead {
            status: job.status,
            fence: job.fence,
            settled_fence: job.settled_fence,
            attempt: job.attempt,
            scheduled_at: job.scheduled_at,
        };
        match &settlement.authority {
            Authority::Fence { fence, .. } => sabotage::seen_by(head, *fence),
            Authority::Outside => head,
        }
    });
    rules::authorise(&settlement.authority, head.as_ref())?;
    job.zip(head).ok_or(Settled::Lost(AbortReason::NotFound))
}

/// Whether the next job may be created: its id is free, its blockers exist, and none of them waits for this chain.
async fn check_next(
    connection: &mut Connection<'_>,
    store: &Store,
    next: &NewJob,
    chain: ChainId,
    id_taken: bool,
    statuses: &HashMap<ChainId, JobStatus>,
) -> Result<Result<(), Refusal>, StateError> {
    let checked = rules::check_new_job(next, id_taken, |blocker| statuses.contains_key(&blocker));
    if checked.is_err() || next.blockers.is_empty() {
        return Ok(checked);
    }
    let blockers = JsonRows::of_ids(next.blockers.iter().map(|chain| chain.as_uuid()));
    let reached = connection
        .fetch(query(&store.statements.chains_waited_for).bind(blockers), |found| {
            found.get::<Uuid>("chain")
        })
        .await?;
    if !reached.contains(&chain.as_uuid()) {
        return Ok(Ok(()));
    }
    let mut edges: HashMap<ChainId, Vec<ChainId>> = HashMap::new();
    let search = query(&store.statements.blocker_edges).bind(JsonRows::of_ids(reached));
    let found = connection.fetch(search, |found| {
        Ok((
            ChainId::from_uuid(found.get("chain")?),
            ChainId::from_uuid(found.get("blocker")?),
        ))
    });
    for (from, to) in found.await? {
        edges.entry(from).or_default().push(to);
    }
    let waits_for = |chain: ChainId| edges.get(&chain).into_iter().flatten().copied();
    Ok(rules::check_circle(next, chain, waits_for))
}

fn successor<'a>(next: &'a NewJob, job: &'a JobToSettle, status: JobStatus) -> NewRow<'a> {
    NewRow {
        job: next,
        chain_id: job.chain_id,
        chain_type: &job.chain_type,
        chain_index: job.chain_index.saturating_add(1),
        chain_created_at: job.chain_created_at,
        status,
        deduplication_key: None,
        keyed: job.keyed,
    }
}

/// Makes the jobs pending whose last blocker completes with these chains. The transaction has the write lock, so no other one
/// decides about these jobs.
async fn unblock(
    connection: &mut Connection<'_>,
    store: &Store,
    completed: &[(usize, ChainId)],
    answers: &mut [Settled],
    now: Timestamp,
) -> Result<(), StateError> {
    // One chain after the other, so that each end reports the jobs whose last blocker it was.
    for (place, chain) in completed {
        let ids = JsonRows::of_ids([chain.as_uuid()]);
        let complete = query(&store.statements.complete_blockers).bind(ids.as_str());
        connection.execute(complete).await?;
        let ready = connection.fetch(query(&store.statements.unblockable_jobs).bind(ids), |found| {
            let job = UnblockedJob {
                job: JobId::from_uuid(found.get("id")?),
                chain: ChainId::from_uuid(found.get("chain_id")?),
                type_name: TypeName::from(found.get::<String>("type").unwrap_or_default()),
            };
            let head = JobHead {
                status: JobStatus::Blocked,
                fence: None,
                settled_fence: None,
                attempt: u32::try_from(found.get::<i64>("attempt")?).unwrap_or_default(),
                scheduled_at: Timestamp::from_micros(found.get("scheduled_at")?),
            };
            // The statement has found that none of its blockers is open.
            let change = rules::unblock(&head, &[], |_| true, now);
            let seq = found.get("seq")?;
            let priority = i16::try_from(found.get::<i64>("priority")?).unwrap_or_default();
            Ok(change.map(|change| {
                let transition = Transition {
                    seq,
                    chain: job.chain,
                    // The chain is open before and after, so its key does not change.
                    chain_index: 0,
                    keyed: false,
                    priority,
                    rank: 0,
                    change,
                };
                (job, transition)
            }))
        });
        let (unblocked, transitions): (Vec<_>, Vec<_>) = ready.await?.into_iter().flatten().unzip();
        transition::apply(connection, store, &transitions, now).await?;
        if !unblocked.is_empty() {
            let jobs = JsonRows::of_ids(unblocked.iter().map(|one| one.job.as_uuid()));
            let mark = query(&store.statements.mark_last_blocker)
                .bind(chain.as_uuid())
                .bind(jobs);
            connection.execute(mark).await?;
        }
        if let Some(Settled::Applied(applied)) = answers.get_mut(*place) {
            applied.unblocked = unblocked;
        }
    }
    Ok(())
}
