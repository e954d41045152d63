//! The general way to settle: for ends that touch other chains than their own, and for all that the hot batch leaves over.
//! Everything is locked before anything is written; the rules of the core decide; the verbs of [`transition`] write.
//!
//! [`transition`]: crate::verbs::transition

use std::collections::{BTreeMap, BTreeSet, HashMap};

use queuert::adapter::rules::{self, Change};
use queuert::adapter::{Applied, Authority, NewJob, Outcome, Refusal, Settled, Settlement, UnblockedJob};
use queuert::{ChainId, JobId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::connect::Access;
use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::locks::Locked;
use crate::locks::scope::{Scope, chains_of, lock};
use crate::row::{self, StoredJob};
use crate::store::{Store, integer};
use crate::transaction::Work;
use crate::type_ids::nameless;
use crate::verbs::create::{NewRow, taken, write};
use crate::verbs::lease::{authorise, standings};
use crate::verbs::transition::Transition;

/// Settles in a transaction of its own, and waits for no lock: what another transaction has locked is [`Settled::Busy`].
pub(crate) async fn settle_alone(
    access: &Access,
    store: &Store,
    settlements: &[&Settlement],
) -> Result<Vec<Settled>, StateError> {
    let mut work = Work::transaction(access).await?;
    let mut session = work.session();
    session.waits = false;
    let settled = settle(&mut session, store, settlements).await?;
    if settled.iter().any(|settled| matches!(settled, Settled::Applied(_))) {
        work.commit().await?;
    } else {
        work.rollback().await?;
    }
    Ok(settled)
}

/// Settles jobs, of which each is there once, and returns the answers in the same order. Where the session does not wait and
/// something is locked, the item is [`Settled::Busy`] and nothing of it has changed.
pub(crate) async fn settle(
    session: &mut Session<'_>,
    store: &Store,
    settlements: &[&Settlement],
) -> Result<Vec<Settled>, StateError> {
    let jobs: Vec<JobId> = settlements.iter().map(|settlement| settlement.job).collect();
    let chains = chains_of(session, store, &jobs).await?;
    let locked = store.lock_chains(session, chains.values().copied()).await?;
    let mut answers = refused(session, store, settlements, &chains, &locked).await?;
    let mut ends = Vec::new();
    for settlement in settlements.iter().filter(|each| !answers.contains_key(&each.job)) {
        let stored = chains.get(&settlement.job).and_then(|chain| locked.latest.get(chain));
        let stored = stored.ok_or_else(|| corrupt("a chain that is locked is not there"))?;
        ends.push(End { settlement, stored });
    }
    if !ends.is_empty() {
        let now = locked.now.ok_or_else(|| corrupt("a lock has no time"))?;
        let settled = apply(session, store, &ends, now).await?;
        if settled
            .iter()
            .any(|(_, settled)| matches!(settled, Settled::Applied(_)))
        {
            limit_idle_time(session, store, &ends).await?;
        }
        answers.extend(settled);
    }
    let answer = |job: &JobId| {
        let missing = || corrupt(format!("the end of job {job} has no answer"));
        answers.remove(job).ok_or_else(missing)
    };
    jobs.iter().map(answer).collect()
}

/// An end that may be written. The chain of its job is locked.
#[derive(Clone, Copy)]
struct End<'a> {
    settlement: &'a Settlement,
    stored: &'a StoredJob,
}

impl End<'_> {
    fn change(&self, now: Timestamp) -> Change {
        rules::settle(self.settlement, &self.stored.head(), now)
    }

    fn transition(&self, now: Timestamp) -> Transition {
        Transition::of_change(self.stored, self.change(now))
    }

    fn applied(&self) -> Applied {
        Applied {
            interrupted: rules::interrupts(&self.settlement.authority, &self.stored.head()),
            ..Applied::default()
        }
    }
}

/// The answers for settlements that cannot be applied now, or by this caller.
async fn refused(
    session: &mut Session<'_>,
    store: &Store,
    settlements: &[&Settlement],
    chains: &BTreeMap<JobId, ChainId>,
    locked: &Locked,
) -> Result<HashMap<JobId, Settled>, StateError> {
    let mut answers = HashMap::new();
    // Settlements of which the lock says nothing, with the answer if the state of the job does not say more.
    let mut unknown: Vec<(&Settlement, Settled)> = Vec::new();
    for settlement in settlements {
        let Some(chain) = chains.get(&settlement.job) else {
            answers.insert(settlement.job, Settled::Lost(rules::lost(None)));
            continue;
        };
        match locked.latest.get(chain) {
            Some(stored) if stored.job.id == settlement.job => {
                if let Err(answer) = authorise(&settlement.authority, Some(&stored.head())) {
                    answers.insert(settlement.job, answer);
                }
            }
            // A lost job stays lost, whichever transaction has the chain locked.
            _ if locked.busy.contains(chain) => unknown.push((settlement, Settled::Busy)),
            // Gone, or not the latest job of its chain any more.
            _ => unknown.push((settlement, Settled::Lost(rules::lost(Some(JobStatus::Completed))))),
        }
    }
    if !unknown.is_empty() {
        let standings = standings(session, store, unknown.iter().map(|(settlement, _)| settlement.job)).await?;
        for (settlement, otherwise) in unknown {
            let head = standings.get(&settlement.job).map(|standing| &standing.head);
            let answer = authorise(&settlement.authority, head).err().unwrap_or(otherwise);
            answers.insert(settlement.job, answer);
        }
    }
    Ok(answers)
}

async fn apply(
    session: &mut Session<'_>,
    store: &Store,
    ends: &[End<'_>],
    now: Timestamp,
) -> Result<Vec<(JobId, Settled)>, StateError> {
    let is_finish = |end: &&End<'_>| matches!(end.settlement.outcome, Outcome::Finish { .. });
    let (finishes, others): (Vec<&End<'_>>, Vec<&End<'_>>) = ends.iter().partition(is_finish);
    let mut answers = finish(session, store, &finishes, now).await?;
    for end in others {
        let settled = match &end.settlement.outcome {
            Outcome::Continue { next } => continue_with(session, store, end, next, now).await?,
            _ => {
                store.apply(session, &[end.transition(now)], now).await?;
                Settled::Applied(end.applied())
            }
        };
        answers.push((end.settlement.job, settled));
    }
    Ok(answers)
}

/// Finishes chains, and unblocks the jobs that wait for nothing else.
async fn finish(
    session: &mut Session<'_>,
    store: &Store,
    finishes: &[&End<'_>],
    now: Timestamp,
) -> Result<Vec<(JobId, Settled)>, StateError> {
    let mut answers = Vec::with_capacity(finishes.len());
    let awaited = finishes.iter().filter(|end| end.stored.awaited);
    let awaited: Vec<Uuid> = awaited.map(|end| end.stored.job.chain_id.as_uuid()).collect();
    let edges = lock_dependants(session, store, awaited).await?;
    let busy: BTreeSet<ChainId> = edges
        .iter()
        .filter(|edges| edges.slipped)
        .map(|edges| edges.chain)
        .collect();
    // A chain has one latest job, so it is there once.
    let mut finished: BTreeMap<ChainId, &End<'_>> = BTreeMap::new();
    for end in finishes {
        if busy.contains(&end.stored.job.chain_id) {
            answers.push((end.settlement.job, Settled::Busy));
        } else {
            finished.insert(end.stored.job.chain_id, end);
        }
    }
    if finished.is_empty() {
        return Ok(answers);
    }
    let transitions: Vec<Transition> = finished.values().map(|end| end.transition(now)).collect();
    store.apply(session, &transitions, now).await?;
    let mut unblocked = unblock_dependants(session, store, &edges, &finished).await?;
    for (chain, end) in finished {
        let applied = Applied {
            unblocked: unblocked.remove(&chain).unwrap_or_default(),
            ..end.applied()
        };
        answers.push((end.settlement.job, Settled::Applied(applied)));
    }
    Ok(answers)
}

/// The edges of a job to a chain for whose end it may wait.
#[derive(Clone, Copy, Debug)]
struct Edges {
    chain: ChainId,
    job: Uuid,
    /// How many of its blockers are this chain.
    count: i32,
    /// Whether the job waits, and its row is locked now.
    locked: bool,
    /// Whether the job waits, or did a moment ago, and its row is not locked.
    slipped: bool,
}

/// Locks the rows of jobs that wait for these chains, which are locked, in order of id. No job can become one of them
/// meanwhile.
async fn lock_dependants(
    session: &mut Session<'_>,
    store: &Store,
    chains: Vec<Uuid>,
) -> Result<Vec<Edges>, StateError> {
    if chains.is_empty() {
        return Ok(Vec::new());
    }
    loop {
        let mut edges = Vec::new();
        let lock = query(store.sql.dependants.when(!session.waits)).bind(chains.clone());
        for found in session.fetch(lock).await? {
            let (locked, waiting) = (row::get(&found, "is_locked")?, row::get::<bool>(&found, "is_waiting")?);
            edges.push(Edges {
                chain: ChainId::from_uuid(row::get(&found, "chain_id")?),
                job: row::get(&found, "job_id")?,
                count: row::get(&found, "count")?,
                locked,
                slipped: waiting && !locked,
            });
        }
        // If the session waits, another transaction has deleted a row while this one waited for its lock. Either the job
        // waits no more, or it has a new row, which must be locked too.
        if !session.waits || edges.iter().all(|edges| !edges.slipped) {
            return Ok(edges);
        }
    }
}

/// Takes the edges to finished chains away, and returns the jobs that have none left by the chain that unblocked them.
async fn unblock_dependants(
    session: &mut Session<'_>,
    store: &Store,
    edges: &[Edges],
    finished: &BTreeMap<ChainId, &End<'_>>,
) -> Result<HashMap<ChainId, Vec<UnblockedJob>>, StateError> {
    // Of several chains that unblock a job together, the last one counts.
    let mut taken: BTreeMap<Uuid, (i32, ChainId)> = BTreeMap::new();
    for edges in edges
        .iter()
        .filter(|edges| edges.locked && finished.contains_key(&edges.chain))
    {
        let (count, chain) = taken.entry(edges.job).or_insert((0, edges.chain));
        (*count, *chain) = (*count + edges.count, edges.chain);
    }
    let counted = taken
        .iter()
        .map(|(job, (count, chain))| (*job, *count, chain.as_uuid()));
    let mut unblocked: HashMap<ChainId, Vec<UnblockedJob>> = HashMap::new();
    for job in unblock(session, store, counted).await? {
        if let Some((_, chain)) = taken.get(&job.job.as_uuid()) {
            unblocked.entry(*chain).or_default().push(job);
        }
    }
    Ok(unblocked)
}

/// Takes edges of blocked jobs away, and makes the jobs pending that have none left: of each job how many edges, and the
/// chain that has ended, or one of them. A statement of its own, after the locks.
pub(crate) async fn unblock(
    session: &mut Session<'_>,
    store: &Store,
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
    let unblock = query(&store.sql.unblock).bind(jobs).bind(edges);
    let unblock = unblock.bind(store.step()).bind(ended);
    let mut found = Vec::new();
    for row in &session.fetch(unblock).await? {
        let job = JobId::from_uuid(row::get(row, "id")?);
        let chain = ChainId::from_uuid(row::get(row, "chain_id")?);
        found.push((job, chain, row::get(row, "type_id")?));
    }
    named(session, store, found).await
}

/// Jobs that were unblocked, with the names of their types in place of the numbers.
pub(crate) async fn named(
    session: &mut Session<'_>,
    store: &Store,
    found: Vec<(JobId, ChainId, i32)>,
) -> Result<Vec<UnblockedJob>, StateError> {
    let type_ids = found.iter().map(|(.., type_id)| *type_id);
    store.name_types(session, type_ids).await?;
    let named = found.into_iter().map(|(job, chain, type_id)| UnblockedJob {
        job,
        chain,
        type_name: store.type_ids.name(type_id).unwrap_or_else(|| nameless(type_id)),
    });
    Ok(named.collect())
}

/// Continues a chain with a job that has blockers, or from outside.
async fn continue_with(
    session: &mut Session<'_>,
    store: &Store,
    end: &End<'_>,
    next: &NewJob,
    now: Timestamp,
) -> Result<Settled, StateError> {
    let blockers = match lock_blockers(session, store, end.stored.job.chain_id, next).await? {
        Blockers::Busy => return Ok(Settled::Busy),
        Blockers::Refused(refusal) => return Ok(Settled::Refused(refusal)),
        Blockers::Locked(blockers) => blockers,
    };
    let row = successor(next, end.stored, &blockers);
    if let Err(refusal) = write(session, store, std::slice::from_ref(&row)).await? {
        return Ok(Settled::Refused(refusal));
    }
    store.apply(session, &[end.transition(now)], now).await?;
    store.mark_awaited(session, blockers.latest.values()).await?;
    Ok(Settled::Applied(Applied {
        next: Some(row.status()),
        ..end.applied()
    }))
}

enum Blockers {
    Locked(Locked),
    Busy,
    Refused(Refusal),
}

/// Locks the chains for which the next job is to wait, and all for which these wait: two continuations that close a circle
/// together would not see each other unless each holds all chains that it has looked at.
async fn lock_blockers(
    session: &mut Session<'_>,
    store: &Store,
    chain: ChainId,
    next: &NewJob,
) -> Result<Blockers, StateError> {
    let wanted: BTreeSet<ChainId> = next.blockers.iter().copied().collect();
    let roots: Vec<ChainId> = wanted.iter().copied().collect();
    let (ahead, mut held) = lock(session, store, Scope::Ahead(&roots)).await?;
    if !held.busy.is_empty() {
        return Ok(Blockers::Busy);
    }
    let id_taken = !taken(session, store, std::iter::once(next.id)).await?.is_empty();
    let exists = |id: ChainId| id == chain || held.latest.contains_key(&id);
    if let Err(refusal) = rules::check_new_job(next, id_taken, exists) {
        return Ok(Blockers::Refused(refusal));
    }
    if ahead.contains(&chain) {
        let edges = edges_of(session, store, &ahead).await?;
        let waits_for = |chain: ChainId| edges.get(&chain).into_iter().flatten().copied();
        if let Err(refusal) = rules::check_circle(next, chain, waits_for) {
            return Ok(Blockers::Refused(refusal));
        }
    }
    held.latest.retain(|id, _| wanted.contains(id));
    Ok(Blockers::Locked(held))
}

/// The chains for which each of these chains waits.
async fn edges_of(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<HashMap<ChainId, Vec<ChainId>>, StateError> {
    let ids: Vec<Uuid> = chains.iter().map(|chain| chain.as_uuid()).collect();
    let mut edges: HashMap<ChainId, Vec<ChainId>> = HashMap::new();
    for found in session.fetch(query(&store.sql.edges_ahead).bind(ids)).await? {
        let waiting = ChainId::from_uuid(row::get(&found, "waiting_chain_id")?);
        let blocker = ChainId::from_uuid(row::get(&found, "blocker_chain_id")?);
        edges.entry(waiting).or_default().push(blocker);
    }
    Ok(edges)
}

fn successor<'a>(next: &'a NewJob, stored: &StoredJob, blockers: &Locked) -> NewRow<'a> {
    let is_open = |chain: &&ChainId| blockers.status(chain) != Some(JobStatus::Completed);
    NewRow {
        job: next,
        chain: stored.job.chain_id,
        chain_type_id: Some(stored.chain_type_id),
        chain_index: stored.job.chain_index + 1,
        chain_created_at: Some(stored.chain_created_at),
        deduplication: None,
        keyed: stored.keyed,
        awaited: stored.awaited,
        remaining: integer(next.blockers.iter().filter(is_open).count()),
    }
}

/// Limits the idle time of the transaction of an attempt, which has nothing left to do but to commit.
async fn limit_idle_time(session: &mut Session<'_>, store: &Store, ends: &[End<'_>]) -> Result<(), StateError> {
    let by_attempt = |end: &&End<'_>| matches!(end.settlement.authority, Authority::Fence { .. });
    let leases = ends
        .iter()
        .filter(by_attempt)
        .filter_map(|end| end.stored.job.lease.as_ref());
    let Some(until) = leases.map(|lease| lease.until).min() else {
        return Ok(());
    };
    if session.waits {
        let limit = query(&store.sql.limit_idle_time).bind(until.as_micros());
        session.execute(limit).await?;
    }
    Ok(())
}
