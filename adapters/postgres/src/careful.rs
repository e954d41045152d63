//! Ends that touch other chains than their own: continuations with blockers, ends from outside, and within the caller's
//! transaction those that somebody waits for. One at a time, everything locked before anything is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use queuert::adapter::rules::closing_blocker;
use queuert::adapter::{Applied, Authority, NewJob, Outcome, Refusal, Repeated, Settled, Settlement, UnblockedJob};
use queuert::{AttemptError, ChainId, JobId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::change::{Change, Destination};
use crate::core::{Core, integer};
use crate::create::{NewRow, write};
use crate::error::corrupt;
use crate::lease::{Standing, lost, standings};
use crate::lock::Locked;
use crate::lock_set::{Scope, lock};
use crate::row::{self, StoredJob};
use crate::sabotage::Bug;
use crate::session::{Session, query};
use crate::types::nameless;

/// Settles one end. Where the session does not wait and something is locked, nothing has changed.
pub(crate) async fn settle_carefully(
    session: &mut Session<'_>,
    core: &Core,
    settlement: &Settlement,
) -> Result<Settled, StateError> {
    let chain_of = core.render("SELECT chain_id FROM {schema}.job WHERE id = $1");
    let found = session.fetch(query(&chain_of).bind(settlement.job.as_uuid())).await?;
    let Some(chain) = found.first().map(|found| row::get(found, 0)).transpose()? else {
        return Ok(Settled::Lost(lost(None)));
    };
    let chain = ChainId::from_uuid(chain);
    let locked = core.lock_chains(session, [chain]).await?;
    if !locked.busy.is_empty() {
        // What is lost stays lost, whoever holds the chain.
        return Ok(match stale(session, core, settlement).await? {
            Some(answer) => answer,
            None => Settled::Busy,
        });
    }
    let stored = match locked.latest.get(&chain) {
        Some(stored) if stored.job.id == settlement.job => stored,
        // Gone, or not the latest job of its chain any more.
        _ => {
            let answer = stale(session, core, settlement).await?;
            return Ok(answer.unwrap_or(Settled::Lost(lost(Some(JobStatus::Completed)))));
        }
    };
    if let Err(answer) = authorise(settlement, stored) {
        return Ok(answer);
    }
    let now = locked.now.ok_or_else(|| corrupt("a lock has no time"))?;
    let interrupted = settlement.authority == Authority::Outside && stored.job.status == JobStatus::Running;
    let mut applied = Applied {
        interrupted,
        ..Applied::default()
    };
    match &settlement.outcome {
        Outcome::Finish { .. } => {
            let Some(dependants) = lock_dependants(session, core, stored).await? else {
                return Ok(Settled::Busy);
            };
            core.change(session, &[change(settlement, stored, now)], now).await?;
            let ended = chain.as_uuid();
            let dependants = dependants.into_iter().map(|(job, edges)| (job, edges, ended));
            applied.unblocked = unblock(session, core, dependants).await?;
        }
        Outcome::Continue { next } => match lock_blockers(session, core, chain, next).await? {
            Blockers::Busy => return Ok(Settled::Busy),
            Blockers::Refused(refusal) => return Ok(Settled::Refused(refusal)),
            Blockers::Locked(blockers) => {
                let row = successor(next, stored, &blockers);
                if let Err(refusal) = write(session, core, std::slice::from_ref(&row)).await? {
                    return Ok(Settled::Refused(refusal));
                }
                applied.next = Some(row.status());
                core.change(session, &[change(settlement, stored, now)], now).await?;
                core.mark_awaited(session, blockers.latest.values()).await?;
            }
        },
        _ => core.change(session, &[change(settlement, stored, now)], now).await?,
    }
    // In the transaction of an attempt, which is to commit now.
    if let (true, Authority::Fence { .. }, Some(lease)) = (session.waits, &settlement.authority, &stored.job.lease) {
        session
            .execute(query(&core.sql.idle_until).bind(lease.until.as_micros()))
            .await?;
    }
    Ok(Settled::Applied(applied))
}

/// The answer if the job is not the caller's any more, without locking anything.
async fn stale(session: &mut Session<'_>, core: &Core, settlement: &Settlement) -> Result<Option<Settled>, StateError> {
    let standings = standings(session, core, std::iter::once(settlement.job)).await?;
    Ok(outdated(settlement, standings.get(&settlement.job)))
}

/// The same by what is known of the job, which is nothing if it is gone.
pub(crate) fn outdated(settlement: &Settlement, standing: Option<&Standing>) -> Option<Settled> {
    let Some(standing) = standing else {
        return Some(Settled::Lost(lost(None)));
    };
    match &settlement.authority {
        Authority::Fence { fence, .. } if standing.fence == Some(fence.as_uuid()) => None,
        Authority::Fence { .. } if standing.fence.is_some() && Bug::Fencing.is_on() => None,
        Authority::Fence { fence, .. } if standing.settled_fence == Some(fence.as_uuid()) => {
            Some(Settled::Repeated(Repeated::new(standing.status)))
        }
        Authority::Outside if standing.status.is_open() => None,
        _ => Some(Settled::Lost(lost(Some(standing.status)))),
    }
}

/// Whether the caller may settle the job, which is locked.
pub(crate) fn authorise(settlement: &Settlement, stored: &StoredJob) -> Result<(), Settled> {
    let status = stored.job.status;
    match &settlement.authority {
        Authority::Fence { fence, .. } => match &stored.job.lease {
            Some(lease) if lease.fence == *fence || Bug::Fencing.is_on() => Ok(()),
            _ if stored.settled_fence == Some(fence.as_uuid()) => Err(Settled::Repeated(Repeated::new(status))),
            _ => Err(Settled::Lost(lost(Some(status)))),
        },
        Authority::Outside if status.is_open() => Ok(()),
        Authority::Outside => Err(Settled::Lost(lost(Some(status)))),
    }
}

/// What the end writes to the job itself.
pub(crate) fn change(settlement: &Settlement, stored: &StoredJob, now: Timestamp) -> Change {
    let job = &stored.job;
    let (fence, completed_by) = match &settlement.authority {
        Authority::Fence { fence, worker } => (Some(fence.as_uuid()), Some(worker.as_str().to_owned())),
        Authority::Outside => (None, None),
    };
    let completed = |is_final, output| Destination::Completed {
        ended_at: now,
        is_final,
        completed_by: completed_by.clone(),
        output,
    };
    let failed = |message: &str| {
        Some(AttemptError {
            attempt: job.attempt,
            at: now,
            message: message.to_owned(),
        })
    };
    // One that was blocked, and is settled from outside, stays blocked.
    let waiting = match stored.remaining {
        Some(remaining) => Destination::Blocked { remaining },
        None => Destination::Pending,
    };
    let unspent = job.attempt.saturating_sub(u32::from(job.status == JobStatus::Running));
    let mut change = match &settlement.outcome {
        Outcome::Finish { output } => Change::of(stored, completed(true, Some(output.clone()))),
        Outcome::Continue { .. } => Change::of(stored, completed(false, None)),
        Outcome::Retry { schedule, error } => Change {
            scheduled_at: schedule.resolve(now),
            error: failed(error),
            ..Change::of(stored, waiting)
        },
        Outcome::Bury { error } => {
            let dead = Destination::Stopped {
                status: JobStatus::Dead,
                ended_at: now,
            };
            Change {
                error: failed(error),
                ..Change::of(stored, dead)
            }
        }
        Outcome::Release => Change {
            attempt: unspent,
            ..Change::of(stored, waiting)
        },
        Outcome::Snooze { schedule } => Change {
            scheduled_at: schedule.resolve(now),
            attempt: unspent,
            ..Change::of(stored, waiting)
        },
    };
    change.settled_fence = fence.or(change.settled_fence);
    change
}

/// The jobs that the end of the chain may unblock, each with its edges to the chain; `None` if one is locked and the
/// session does not wait. The chain is locked, so nobody can become one of them meanwhile.
async fn lock_dependants(
    session: &mut Session<'_>,
    core: &Core,
    stored: &StoredJob,
) -> Result<Option<BTreeMap<Uuid, i32>>, StateError> {
    if !stored.awaited {
        return Ok(Some(BTreeMap::new()));
    }
    let chain = stored.job.chain_id;
    let mut dependants = BTreeMap::new();
    loop {
        let found = try_lock_dependants(session, core, vec![chain.as_uuid()]).await?;
        let slipped = found.iter().any(|edge| edge.slipped);
        let locked = found.into_iter().filter(|edge| edge.locked);
        dependants.extend(locked.map(|edge| (edge.job, edge.count)));
        match (slipped, session.waits) {
            (false, _) => return Ok(Some(dependants)),
            (true, false) => return Ok(None),
            // Another transaction took a row away while we waited. Either the job waits no more, or its row is a new
            // one, and it must not be forgotten.
            (true, true) => {}
        }
    }
}

/// What a job has to do with a chain whose end it may wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edges {
    pub(crate) chain: ChainId,
    pub(crate) job: Uuid,
    /// How many of its blockers are this chain.
    pub(crate) count: i32,
    /// Whether it waits, and its row is locked now.
    pub(crate) locked: bool,
    /// Whether it waits, or did a moment ago, and its row is not locked.
    pub(crate) slipped: bool,
}

/// Locks the rows of jobs that wait for these chains, which are locked, in order of id.
pub(crate) async fn try_lock_dependants(
    session: &mut Session<'_>,
    core: &Core,
    chains: Vec<Uuid>,
) -> Result<Vec<Edges>, StateError> {
    let skip = if session.waits { "" } else { " SKIP LOCKED" };
    let text = format!(
        "WITH edges AS MATERIALIZED (SELECT b.chain_id, b.job_id, count(*)::integer AS edges FROM {{schema}}.blocker AS b \
         WHERE b.chain_id = ANY ($1::uuid[]) GROUP BY b.chain_id, b.job_id), \
         locked AS MATERIALIZED (SELECT w.id FROM {{schema}}.waiting AS w \
         WHERE w.id = ANY (ARRAY(SELECT DISTINCT job_id FROM edges)) ORDER BY w.id FOR UPDATE{skip}) \
         SELECT e.chain_id, e.job_id, e.edges, e.job_id IN (SELECT l.id FROM locked AS l), \
         EXISTS (SELECT 1 FROM {{schema}}.waiting AS w WHERE w.id = e.job_id) FROM edges AS e"
    );
    let mut edges = Vec::new();
    for found in session.fetch(query(&core.render(&text)).bind(chains)).await? {
        let (locked, waits) = (row::get::<bool>(&found, 3)?, row::get::<bool>(&found, 4)?);
        edges.push(Edges {
            chain: ChainId::from_uuid(row::get(&found, 0)?),
            job: row::get(&found, 1)?,
            count: row::get(&found, 2)?,
            locked,
            slipped: waits && !locked,
        });
    }
    Ok(edges)
}

/// Takes edges away, and makes the jobs pending that have none left: of each job how many edges, and the chain that has
/// ended, or one of them. As a statement of its own, after the locks.
pub(crate) async fn unblock(
    session: &mut Session<'_>,
    core: &Core,
    dependants: impl Iterator<Item = (Uuid, i32, Uuid)>,
) -> Result<Vec<UnblockedJob>, StateError> {
    let (mut jobs, mut edges, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    for (job, count, chain) in dependants {
        jobs.push(job);
        edges.push(count);
        ended.push(chain);
    }
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let unblock = query(&core.sql.unblock).bind(jobs).bind(edges);
    let unblock = unblock.bind(core.step()).bind(ended);
    let rows = session.fetch(unblock).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let (job, chain, number): (Uuid, Uuid, i32) = (row::get(row, 0)?, row::get(row, 1)?, row::get(row, 2)?);
        found.push((JobId::from_uuid(job), ChainId::from_uuid(chain), number));
    }
    named(session, core, found).await
}

/// Jobs that were unblocked, with the names of their types in place of the numbers.
pub(crate) async fn named(
    session: &mut Session<'_>,
    core: &Core,
    found: Vec<(JobId, ChainId, i32)>,
) -> Result<Vec<UnblockedJob>, StateError> {
    core.name_types(session, found.iter().map(|(_, _, number)| *number))
        .await?;
    let named = found.into_iter().map(|(job, chain, number)| UnblockedJob {
        job,
        chain,
        type_name: core.types.name(number).unwrap_or_else(|| nameless(number)),
    });
    Ok(named.collect())
}

enum Blockers {
    Locked(Locked),
    Busy,
    Refused(Refusal),
}

/// Locks the chains that the next job is to wait for, and all that these wait for: two continuations that close a circle
/// together would not see each other unless each holds the whole way that it has looked at.
async fn lock_blockers(
    session: &mut Session<'_>,
    core: &Core,
    chain: ChainId,
    next: &NewJob,
) -> Result<Blockers, StateError> {
    let wanted: BTreeSet<ChainId> = next.blockers.iter().copied().collect();
    let roots: Vec<ChainId> = wanted.iter().copied().collect();
    let (way, mut held) = lock(session, core, Scope::Way(&roots)).await?;
    if !held.busy.is_empty() {
        return Ok(Blockers::Busy);
    }
    let exists = |id: &ChainId| *id == chain || held.latest.contains_key(id);
    let missing = next.blockers.iter().find(|id| !exists(id)).copied();
    if crate::create::taken(session, core, std::iter::once(next.id))
        .await?
        .contains(&next.id)
    {
        return Ok(Blockers::Refused(Refusal::IdTaken(next.id)));
    }
    if let Some(missing) = missing {
        return Ok(Blockers::Refused(Refusal::BlockerNotFound {
            job: next.id,
            chain: missing,
        }));
    }
    if way.contains(&chain) {
        let edges = edges(session, core, &way).await?;
        let ahead = |chain: ChainId| edges.get(&chain).into_iter().flatten().copied();
        if let Some(blocker) = closing_blocker(&next.blockers, chain, ahead) {
            return Ok(Blockers::Refused(Refusal::BlockerCycle {
                job: next.id,
                chain: blocker,
            }));
        }
    }
    held.latest.retain(|id, _| wanted.contains(id));
    Ok(Blockers::Locked(held))
}

/// What each of these chains waits for.
async fn edges(
    session: &mut Session<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<HashMap<ChainId, Vec<ChainId>>, StateError> {
    let ids: Vec<Uuid> = chains.iter().map(|chain| chain.as_uuid()).collect();
    let mut edges: HashMap<ChainId, Vec<ChainId>> = HashMap::new();
    for found in session.fetch(query(&core.sql.way_edges).bind(ids)).await? {
        let (from, to) = (row::get(&found, 0)?, row::get(&found, 1)?);
        edges
            .entry(ChainId::from_uuid(from))
            .or_default()
            .push(ChainId::from_uuid(to));
    }
    Ok(edges)
}

fn successor<'a>(next: &'a NewJob, stored: &StoredJob, blockers: &Locked) -> NewRow<'a> {
    let open = |chain: &&ChainId| blockers.status(chain) != Some(JobStatus::Completed);
    NewRow {
        job: next,
        chain: stored.job.chain_id,
        chain_type_number: Some(stored.chain_type_number),
        chain_index: stored.job.chain_index + 1,
        chain_created_at: Some(stored.chain_created_at),
        deduplication: None,
        keyed: stored.keyed,
        awaited: stored.awaited,
        remaining: integer(next.blockers.iter().filter(open).count()),
    }
}
