//! Starting chains.

pub(crate) mod coalesce;
pub(crate) mod keys;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use queuert::adapter::rules::{self, PlannedStart};
use queuert::adapter::{CreatedChain, NewChain, NewJob, Refusal};
use queuert::{ChainId, Deduplication, JobId, JobStatus, Schedule, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Query, Session, query};
use crate::error::{corrupt, is_unique_violation, translate};
use crate::locks::scope::{Scope, lock};
use crate::row;
use crate::statements::{Filling, text};
use crate::store::{Store, integer};
use crate::type_ids::Expected;
use crate::verbs::transition::{Destination, Transition};

/// Whether the chains can be written without looking at other chains or keys first.
pub(crate) fn is_simple(chains: &[NewChain]) -> bool {
    chains
        .iter()
        .all(|chain| chain.deduplication.is_none() && chain.job.blockers.is_empty())
}

/// A schedule as two numbers of which one is set: the time, or the delay.
pub(crate) fn split(schedule: Schedule) -> (Option<i64>, Option<i64>) {
    match schedule {
        Schedule::Now => (None, Some(0)),
        Schedule::After(delay) => (None, Some(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX))),
        Schedule::At(time) => (Some(time.as_micros()), None),
    }
}

/// How long a start waits for a lock of another transaction: one that has an id of its own in it and is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// Not for long, because other starts wait behind it.
    Short,
    /// For as long as it takes.
    Unlimited,
}

const SHORT_WAIT: Duration = Duration::from_millis(100);

impl LockWait {
    /// The gaps of a statement that waits for so long.
    fn filling(self) -> Filling {
        Filling::none()
            .when("limits_lock_wait", self == Self::Short)
            .with("lock_timeout", format_args!("{}ms", SHORT_WAIT.as_millis()))
    }
}

/// The first job of chains that differ in nothing but their inputs; `None` if they differ in more.
fn alike(chains: &[NewChain]) -> Option<&NewJob> {
    let first = &chains.first()?.job;
    let like_first = |NewChain { job, .. }: &NewChain| {
        job.schedule == Schedule::Now
            && job.max_attempts.is_none()
            && job.trace_context.is_none()
            && job.priority == first.priority
            && job.type_name == first.type_name
    };
    chains.iter().all(like_first).then_some(first)
}

/// Starts chains that have neither keys nor blockers, and whose types have been interned, in one statement; `None` if an
/// id is taken, and nothing was done.
pub(crate) async fn create_simply(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[NewChain],
    lock_wait: LockWait,
) -> Result<Option<Vec<CreatedChain>>, StateError> {
    let mut expected = store.expected(chains.iter().map(|chain| &chain.job.type_name));
    loop {
        let insert = match alike(chains) {
            Some(first) => bind_alike(store, chains, first, &expected, lock_wait)?,
            None => bind_simple(store, chains, &expected, lock_wait)?,
        };
        match session.try_execute(insert).await {
            Ok(0) if !expected.names.is_empty() => {
                // Once the types exist, nothing is left to check: the caller's snapshot may be too old to see them.
                store.intern_again(std::mem::take(&mut expected)).await?;
            }
            Ok(_) => break,
            Err(error) if is_unique_violation(&error) => return Ok(None),
            Err(error) => return Err(translate(error)),
        }
    }
    let created = chains.iter().map(|chain| CreatedChain {
        id: chain.job.id.as_chain(),
        status: JobStatus::Pending,
        deduplicated: false,
    });
    Ok(Some(created.collect()))
}

fn bind_alike(
    store: &Store,
    chains: &[NewChain],
    first: &NewJob,
    expected: &Expected,
    lock_wait: LockWait,
) -> Result<Query, StateError> {
    let (mut ids, mut inputs) = (Vec::with_capacity(chains.len()), Vec::with_capacity(chains.len()));
    for NewChain { job, .. } in chains {
        ids.push(job.id.as_uuid());
        inputs.push(writable(Some(job.input.as_str()), job.id)?);
    }
    let text = store.statement(text::CREATE_ALIKE, lock_wait.filling());
    let insert = expected.bind(query(&text));
    let insert = insert.bind(ids).bind(inputs).bind(store.type_id(&first.type_name));
    Ok(insert.bind(first.priority).bind(store.step()))
}

fn bind_simple(
    store: &Store,
    chains: &[NewChain],
    expected: &Expected,
    lock_wait: LockWait,
) -> Result<Query, StateError> {
    let all_now = chains.iter().all(|chain| chain.job.schedule == Schedule::Now);
    let (mut ids, mut types, mut priorities) = (Vec::new(), Vec::new(), Vec::new());
    let (mut max_attempts, mut traces, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut times, mut delays) = (Vec::new(), Vec::new());
    for NewChain { job, .. } in chains {
        ids.push(job.id.as_uuid());
        types.push(store.type_id(&job.type_name));
        priorities.push(job.priority);
        max_attempts.push(job.max_attempts.map(i64::from));
        traces.push(writable(job.trace_context.as_deref(), job.id)?);
        inputs.push(writable(Some(job.input.as_str()), job.id)?);
        if !all_now {
            let (time, delay) = split(job.schedule);
            times.push(time);
            delays.push(delay);
        }
    }
    let text = store.statement(text::CREATE_SIMPLE, lock_wait.filling().when("all_now", all_now));
    let insert = expected
        .bind(query(&text))
        .bind(ids)
        .bind(types)
        .bind(priorities)
        .bind(max_attempts)
        .bind(traces)
        .bind(inputs)
        .bind(store.step());
    Ok(if all_now {
        insert
    } else {
        insert.bind(times).bind(delays)
    })
}

/// Refuses a text that Postgres cannot keep, before it fails the transaction.
pub(crate) fn writable(text: Option<&str>, job: JobId) -> Result<Option<&str>, StateError> {
    match text {
        Some(text) if text.contains('\0') => Err(corrupt(format!(
            "a text of job {job} contains a NUL character, which Postgres cannot keep; remove it from the text"
        ))),
        text => Ok(text),
    }
}

/// A chain or a later job that is about to be written.
#[derive(Debug)]
pub(crate) struct NewRow<'a> {
    pub(crate) job: &'a NewJob,
    pub(crate) chain: ChainId,
    /// The number of its chain's type as the chain has it, which a damaged row may have lost the name of; `None` for a chain
    /// that begins now, and is of the job's type.
    pub(crate) chain_type_id: Option<i32>,
    pub(crate) chain_index: u32,
    /// `None` for a chain that begins now.
    pub(crate) chain_created_at: Option<Timestamp>,
    /// First jobs only: the key with which the chain is started.
    pub(crate) deduplication: Option<&'a Deduplication>,
    /// Whether its chain was started with a key.
    pub(crate) keyed: bool,
    /// Whether a job has its chain as blocker.
    pub(crate) awaited: bool,
    /// Its edges to chains that have not completed.
    pub(crate) remaining: i32,
}

impl<'a> NewRow<'a> {
    /// The first job of a chain.
    fn of_start(start: &PlannedStart<'a>) -> Self {
        let PlannedStart { chain, .. } = start;
        Self {
            job: &chain.job,
            chain: chain.job.id.as_chain(),
            chain_type_id: None,
            chain_index: 0,
            chain_created_at: None,
            deduplication: chain.deduplication.as_ref(),
            keyed: chain.deduplication.is_some(),
            awaited: start.awaited,
            remaining: integer(start.open_blockers),
        }
    }

    /// The number of its chain's type.
    fn chain_type(&self, store: &Store) -> i32 {
        self.chain_type_id.unwrap_or_else(|| store.type_id(&self.job.type_name))
    }

    pub(crate) fn status(&self) -> JobStatus {
        match self.remaining {
            0 => JobStatus::Pending,
            _ => JobStatus::Blocked,
        }
    }
}

/// Starts chains, all or none. Everything is looked up before anything is written, so a refusal leaves nothing behind.
pub(crate) async fn create(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[NewChain],
) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
    store
        .intern(session, chains.iter().map(|chain| &chain.job.type_name))
        .await?;
    for chain in chains {
        writable(Some(chain.job.input.as_str()), chain.job.id)?;
        writable(chain.job.trace_context.as_deref(), chain.job.id)?;
        writable(
            chain.deduplication.as_ref().map(|wanted| wanted.key.as_str()),
            chain.job.id,
        )?;
    }
    let keys = keys::find_duplicates(session, store, chains).await?;
    let duplicates = &keys.duplicates;
    let blockers = chains
        .iter()
        .enumerate()
        .filter(|(place, _)| !duplicates.contains_key(place))
        .flat_map(|(_, chain)| chain.job.blockers.iter().copied());
    let blockers: Vec<ChainId> = blockers.collect();
    let (_, locked) = lock(session, store, Scope::Chains(&blockers)).await?;
    if let Some(chain) = locked.damaged.keys().min() {
        return Ok(Err(Refusal::Damaged(*chain)));
    }
    let plan = rules::plan_starts(
        chains,
        |place| duplicates.get(&place).cloned(),
        |chain| locked.status(&chain),
    );
    if plan.refusal(|_| false).is_some() {
        // An earlier item, or the refused one itself, may be refused for its id, which comes first.
        let taken = taken(session, store, plan.ids().iter().copied()).await?;
        if let Some(refusal) = plan.refusal(|id| taken.contains(&id)) {
            return Ok(Err(refusal));
        }
    }
    if plan.starts.is_empty() {
        return Ok(Ok(plan.created));
    }
    let rows: Vec<NewRow<'_>> = plan.starts.iter().map(NewRow::of_start).collect();
    match write(session, store, &rows).await? {
        Err(refusal) => return Ok(Err(refusal)),
        Ok(now) => keys::take(session, store, &rows, &keys, now).await?,
    }
    store.mark_awaited(session, locked.latest.values()).await?;
    Ok(Ok(plan.created))
}

/// Writes new jobs with their edges, or says whose id is taken and leaves nothing behind. Returns the time of creation.
pub(crate) async fn write(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[NewRow<'_>],
) -> Result<Result<Timestamp, Refusal>, StateError> {
    store
        .check_types(session, rows.iter().map(|row| &row.job.type_name))
        .await?;
    let inserted: HashMap<Uuid, i64> = insert_jobs(session, store, rows).await?;
    if let Some(taken) = rows.iter().find(|row| !inserted.contains_key(&row.job.id.as_uuid())) {
        // No other transaction has seen the others, and the caller's transaction goes on without them.
        let inserted: Vec<Uuid> = inserted.into_keys().collect();
        session.execute(query(&store.sql.delete_jobs).bind(inserted)).await?;
        return Ok(Err(Refusal::IdTaken(taken.job.id)));
    }
    let now = inserted.values().next().copied();
    let now = now.ok_or_else(|| corrupt("no jobs were given to be written"))?;
    let now = Timestamp::from_micros(now);
    let mut transitions = Vec::with_capacity(rows.len());
    for row in rows {
        transitions.push(Transition {
            job: row.job.id,
            from: None,
            to: match row.remaining {
                0 => Destination::Pending,
                remaining => Destination::Blocked { remaining },
            },
            scheduled_at: row.job.schedule.resolve(now),
            rank: None,
            attempt: 0,
            claims: 0,
            started_at: None,
            settled_fence: None,
            awaited: row.awaited,
            type_id: store.type_id(&row.job.type_name),
            priority: row.job.priority,
            chain: row.chain,
            chain_type_id: row.chain_type(store),
            chain_created_at: row.chain_created_at.unwrap_or(now),
            keyed: row.keyed,
            error: None,
        });
    }
    store.apply(session, &transitions, now).await?;
    insert_edges(session, store, rows).await?;
    Ok(Ok(now))
}

/// Writes the rows of `job`, and returns the jobs that were written with the time of their creation.
async fn insert_jobs(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[NewRow<'_>],
) -> Result<HashMap<Uuid, i64>, StateError> {
    let (mut ids, mut chains, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut types, mut chain_types, mut chain_times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut blockers, mut priorities, mut keyed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut max_attempts, mut keys, mut traces, mut inputs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        ids.push(row.job.id.as_uuid());
        chains.push(row.chain.as_uuid());
        indexes.push(integer(row.chain_index));
        types.push(store.type_id(&row.job.type_name));
        chain_types.push(row.chain_type(store));
        chain_times.push(row.chain_created_at.map(Timestamp::as_micros));
        blockers.push(integer(row.job.blockers.len()));
        priorities.push(row.job.priority);
        keyed.push(row.keyed);
        max_attempts.push(row.job.max_attempts.map(i64::from));
        keys.push(row.deduplication.map(|wanted| wanted.key.clone()));
        traces.push(row.job.trace_context.clone());
        inputs.push(row.job.input.as_str().to_owned());
    }
    let insert = query(&store.sql.insert_jobs)
        .bind(ids)
        .bind(chains)
        .bind(indexes)
        .bind(types)
        .bind(chain_types)
        .bind(chain_times)
        .bind(blockers)
        .bind(priorities)
        .bind(keyed)
        .bind(max_attempts)
        .bind(keys)
        .bind(traces)
        .bind(inputs);
    let found = session.fetch(insert).await?;
    let created = |found| Ok((row::get(found, "id")?, row::get(found, "created_at")?));
    found.iter().map(created).collect()
}

async fn insert_edges(session: &mut Session<'_>, store: &Store, rows: &[NewRow<'_>]) -> Result<(), StateError> {
    let (mut jobs, mut positions, mut chains) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        for (position, chain) in row.job.blockers.iter().enumerate() {
            jobs.push(row.job.id.as_uuid());
            positions.push(integer(position));
            chains.push(chain.as_uuid());
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let insert = query(&store.sql.insert_blockers)
        .bind(jobs)
        .bind(positions)
        .bind(chains);
    session.execute(insert).await
}

/// The ids that jobs have, of those given.
pub(crate) async fn taken(
    session: &mut Session<'_>,
    store: &Store,
    ids: impl Iterator<Item = JobId>,
) -> Result<HashSet<JobId>, StateError> {
    let ids: Vec<Uuid> = ids.map(|id| id.as_uuid()).collect();
    let found = session.fetch(query(&store.sql.taken_ids).bind(ids)).await?;
    found
        .iter()
        .map(|found| row::get(found, "id").map(JobId::from_uuid))
        .collect()
}
