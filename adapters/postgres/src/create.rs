//! Starting chains.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use queuert::adapter::rules::KeysOfCall;
use queuert::adapter::{CreatedChain, NewChain, NewJob, Refusal};
use queuert::{ChainId, Deduplication, JobId, JobStatus, Schedule, StateError, Timestamp};
use uuid::Uuid;

use crate::change::{Change, Destination};
use crate::core::{CLOCK, Core, integer};
use crate::error::{corrupt, is_unique_violation, translate};
use crate::keys;
use crate::lock::Locked;
use crate::lock_set::{Scope, lock};
use crate::row;
use crate::session::{Query, Session, query};
use crate::types::{Expected, KNOWN};

/// Whether nothing has to be looked at before the chains are written.
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

/// The scheduled time of a row with columns `at` and `delay`, never in the past.
pub(crate) fn scheduled(row: &str, now: &str) -> String {
    format!(
        "CASE WHEN {row}.at IS NOT NULL THEN greatest({row}.at, {now}) \
         WHEN {row}.delay > 9223372036854775807 - {now} THEN 9223372036854775807 ELSE {now} + {row}.delay END"
    )
}

/// How long a start waits for somebody's lock: for a transaction that has an id of its own in it and is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not for long, because others wait behind it.
    Short,
    /// For as long as it takes.
    Long,
}

const SHORT: Duration = Duration::from_millis(100);

impl Patience {
    /// The beginning of a statement that has it.
    fn clock(self) -> String {
        let timeout = match self {
            Self::Short => format!("set_config('lock_timeout', '{}ms', true)", SHORT.as_millis()),
            Self::Long => "''".to_owned(),
        };
        let known = KNOWN
            .replace("{numbers}", KNOWN_NUMBERS)
            .replace("{names}", KNOWN_NAMES);
        format!("WITH clock AS MATERIALIZED (SELECT {{now}} AS now, {timeout} AS timeout, {known} AS known), ")
    }
}

/// The types that a start writes and their names come first: nothing is written unless the database has them.
const KNOWN_NUMBERS: &str = "$1::integer[]";
const KNOWN_NAMES: &str = "$2::text[]";
const IF_KNOWN: &str = "(SELECT known FROM clock)";

const NEW_JOB: &str = "INSERT INTO {schema}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, \
     created_at, blockers, priority, keyed, max_attempts, trace_context, input)";

const NEW_READY: &str =
    "INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited)";

/// For chains that differ in nothing but their inputs, as most that are started together do. $3 ids, $4 inputs, $5 the
/// type, $6 the priority, $7 the ageing step.
fn alike_statement(patience: Patience) -> String {
    let now = CLOCK;
    format!(
        "{}new_job AS ({NEW_JOB} SELECT u.id, u.id, 0, $5::integer, $5::integer, {now}, {now}, 0, $6::smallint, false, \
         NULL, NULL, u.input FROM unnest($3::uuid[], $4::text[]) AS u(id, input) WHERE {IF_KNOWN}) \
         {NEW_READY} SELECT u.id, {now} - $6::smallint * $7::bigint, {now}, $5::integer, 0, 0, $6::smallint, false \
         FROM unnest($3::uuid[]) AS u(id) WHERE {IF_KNOWN}",
        patience.clock()
    )
}

/// What chains have in common that differ in nothing but their inputs.
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

/// $3 ids, $4 types, $5 priorities, $6 most attempts, $7 trace contexts, $8 inputs, $9 the ageing step, $10 times,
/// $11 delays. The payloads go into one table only, so the arrays are read twice rather than kept. The last of the
/// insertions has a row per chain.
fn simple_statement(all_now: bool, patience: Patience) -> String {
    let clock = patience.clock();
    let job = format!(
        "{NEW_JOB} SELECT u.id, u.id, 0, u.type_id, u.type_id, clock.now, clock.now, 0, u.priority, false, u.max_attempts, \
         u.trace_context, u.input FROM unnest($3::uuid[], $4::integer[], $5::smallint[], $6::bigint[], $7::text[], \
         $8::text[]) AS u(id, type_id, priority, max_attempts, trace_context, input) CROSS JOIN clock WHERE {IF_KNOWN}"
    );
    if all_now {
        return format!(
            "{clock}new_job AS ({job}) {NEW_READY} SELECT u.id, clock.now - u.priority * $9::bigint, clock.now, u.type_id, \
             0, 0, u.priority, false FROM unnest($3::uuid[], $4::integer[], $5::smallint[]) AS u(id, type_id, priority) \
             CROSS JOIN clock WHERE {IF_KNOWN}"
        );
    }
    format!(
        "{clock}new AS MATERIALIZED (SELECT u.id, u.type_id, u.priority, {} AS scheduled_at \
         FROM unnest($3::uuid[], $4::integer[], $5::smallint[], $10::bigint[], $11::bigint[]) \
         AS u(id, type_id, priority, at, delay) CROSS JOIN clock WHERE {IF_KNOWN}), new_later AS (\
         INSERT INTO {{schema}}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited) \
         SELECT new.id, new.scheduled_at, new.type_id, 0, 0, new.priority, false \
         FROM new CROSS JOIN clock WHERE new.scheduled_at > clock.now), new_ready AS (\
         {NEW_READY} SELECT new.id, new.scheduled_at - new.priority * $9::bigint, new.scheduled_at, new.type_id, 0, 0, \
         new.priority, false FROM new CROSS JOIN clock WHERE new.scheduled_at <= clock.now) {job}",
        scheduled("u", "clock.now")
    )
}

/// Starts chains that have neither keys nor blockers, and whose types have been interned, in one statement; `None` if an
/// id is taken, and nothing was done.
pub(crate) async fn create_simply(
    session: &mut Session<'_>,
    core: &Core,
    chains: &[NewChain],
    patience: Patience,
) -> Result<Option<Vec<CreatedChain>>, StateError> {
    let mut expected = core.expected(chains.iter().map(|chain| &chain.job.type_name));
    loop {
        let insert = match alike(chains) {
            Some(first) => bind_alike(core, chains, first, &expected, patience)?,
            None => bind_simple(core, chains, &expected, patience)?,
        };
        match session.try_execute(insert).await {
            Ok(0) if !expected.names.is_empty() => {
                // Once they are there, nothing is left to check: the caller's snapshot may be too old to see them.
                core.intern_again(std::mem::take(&mut expected)).await?;
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
    core: &Core,
    chains: &[NewChain],
    first: &NewJob,
    expected: &Expected,
    patience: Patience,
) -> Result<Query, StateError> {
    let (mut ids, mut inputs) = (Vec::with_capacity(chains.len()), Vec::with_capacity(chains.len()));
    for NewChain { job, .. } in chains {
        ids.push(job.id.as_uuid());
        inputs.push(writable(Some(job.input.as_str()), job.id)?);
    }
    let insert = expected.bind(query(&core.render(&alike_statement(patience))));
    let insert = insert.bind(ids).bind(inputs).bind(core.type_number(&first.type_name));
    Ok(insert.bind(first.priority).bind(core.step()))
}

fn bind_simple(core: &Core, chains: &[NewChain], expected: &Expected, patience: Patience) -> Result<Query, StateError> {
    let all_now = chains.iter().all(|chain| chain.job.schedule == Schedule::Now);
    let (mut ids, mut types, mut priorities) = (Vec::new(), Vec::new(), Vec::new());
    let (mut max_attempts, mut traces, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut times, mut delays) = (Vec::new(), Vec::new());
    for NewChain { job, .. } in chains {
        ids.push(job.id.as_uuid());
        types.push(core.type_number(&job.type_name));
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
    let insert = expected
        .bind(query(&core.render(&simple_statement(all_now, patience))))
        .bind(ids)
        .bind(types)
        .bind(priorities)
        .bind(max_attempts)
        .bind(traces)
        .bind(inputs)
        .bind(core.step());
    Ok(match all_now {
        true => insert,
        false => insert.bind(times).bind(delays),
    })
}

/// Refuses a text that Postgres cannot keep before it spoils a transaction.
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
    pub(crate) chain_type_number: Option<i32>,
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

impl NewRow<'_> {
    /// The number of its chain's type.
    fn chain_type(&self, core: &Core) -> i32 {
        self.chain_type_number
            .unwrap_or_else(|| core.type_number(&self.job.type_name))
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
    core: &Core,
    chains: &[NewChain],
) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
    core.intern(session, chains.iter().map(|chain| &chain.job.type_name))
        .await?;
    for chain in chains {
        writable(Some(chain.job.input.as_str()), chain.job.id)?;
        writable(chain.job.trace_context.as_deref(), chain.job.id)?;
        writable(
            chain.deduplication.as_ref().map(|wanted| wanted.key.as_str()),
            chain.job.id,
        )?;
    }
    let keys = keys::find_duplicates(session, core, chains).await?;
    let duplicates = &keys.duplicates;
    let blockers = chains
        .iter()
        .enumerate()
        .filter(|(place, _)| !duplicates.contains_key(place))
        .flat_map(|(_, chain)| chain.job.blockers.iter().copied());
    let blockers: Vec<ChainId> = blockers.collect();
    let (_, locked) = lock(session, core, Scope::Chains(&blockers)).await?;
    if let Some(chain) = locked.damaged.keys().min() {
        return Ok(Err(Refusal::Damaged(*chain)));
    }
    let plan = plan(chains, duplicates, &locked);
    if let Some(refusal) = plan.refusal {
        // An earlier item, or this very one, may be refused for its id; that comes first.
        let taken = taken_id(session, core, &chains[..plan.created.len() + 1], duplicates).await?;
        return Ok(Err(taken.unwrap_or(refusal)));
    }
    if plan.rows.is_empty() {
        return Ok(Ok(plan.created));
    }
    match write(session, core, &plan.rows).await? {
        Err(refusal) => return Ok(Err(refusal)),
        Ok(now) => keys::take(session, core, &plan.rows, &keys, now).await?,
    }
    core.mark_awaited(session, locked.latest.values()).await?;
    Ok(Ok(plan.created))
}

/// What is to be written.
struct Plan<'a> {
    created: Vec<CreatedChain>,
    rows: Vec<NewRow<'a>>,
    /// Why the item after the last created one cannot be.
    refusal: Option<Refusal>,
}

fn plan<'a>(chains: &'a [NewChain], duplicates: &HashMap<usize, CreatedChain>, locked: &Locked) -> Plan<'a> {
    let mut plan = Plan {
        created: Vec::with_capacity(chains.len()),
        rows: Vec::with_capacity(chains.len()),
        refusal: None,
    };
    let mut fresh: HashMap<ChainId, usize> = HashMap::new();
    let mut keys = KeysOfCall::new();
    for (place, chain) in chains.iter().enumerate() {
        let job = &chain.job;
        if let Some(found) = keys.find(chain).or_else(|| duplicates.get(&place).cloned()) {
            plan.created.push(found);
            continue;
        }
        let exists = |chain: &ChainId| fresh.contains_key(chain) || locked.latest.contains_key(chain);
        if let Some(missing) = job.blockers.iter().find(|chain| !exists(chain)) {
            plan.refusal = Some(Refusal::BlockerNotFound {
                job: job.id,
                chain: *missing,
            });
            return plan;
        }
        let open = |chain: &&ChainId| locked.status(chain) != Some(JobStatus::Completed);
        for blocker in &job.blockers {
            if let Some(row) = fresh.get(blocker) {
                plan.rows[*row].awaited = true;
            }
        }
        let id = job.id.as_chain();
        let row = NewRow {
            job,
            chain: id,
            chain_type_number: None,
            chain_index: 0,
            chain_created_at: None,
            deduplication: chain.deduplication.as_ref(),
            keyed: chain.deduplication.is_some(),
            awaited: false,
            remaining: integer(job.blockers.iter().filter(open).count()),
        };
        fresh.insert(id, plan.rows.len());
        keys.created(chain, row.status());
        plan.created.push(CreatedChain {
            id,
            status: row.status(),
            deduplicated: false,
        });
        plan.rows.push(row);
    }
    plan
}

/// Writes new jobs with their edges, or says whose id is taken and leaves nothing behind. Returns the time of creation.
pub(crate) async fn write(
    session: &mut Session<'_>,
    core: &Core,
    rows: &[NewRow<'_>],
) -> Result<Result<Timestamp, Refusal>, StateError> {
    core.check_types(session, rows.iter().map(|row| &row.job.type_name))
        .await?;
    let mut seen = HashSet::new();
    if let Some(twice) = rows.iter().find(|row| !seen.insert(row.job.id)) {
        // A store that had the id before would refuse the first of the two, or another one before it.
        let taken = taken(session, core, rows.iter().map(|row| row.job.id)).await?;
        let first = rows.iter().find(|row| taken.contains(&row.job.id)).unwrap_or(twice);
        return Ok(Err(Refusal::IdTaken(first.job.id)));
    }
    let inserted: HashMap<Uuid, i64> = insert_jobs(session, core, rows).await?;
    if let Some(taken) = rows.iter().find(|row| !inserted.contains_key(&row.job.id.as_uuid())) {
        // Nobody has seen the others, and the caller's transaction goes on without them.
        let delete = core.render("DELETE FROM {schema}.job WHERE id = ANY ($1::uuid[])");
        let inserted: Vec<Uuid> = inserted.into_keys().collect();
        session.execute(query(&delete).bind(inserted)).await?;
        return Ok(Err(Refusal::IdTaken(taken.job.id)));
    }
    let now = inserted.values().next().copied();
    let now = now.ok_or_else(|| corrupt("no jobs were given to be written"))?;
    let now = Timestamp::from_micros(now);
    let mut changes = Vec::with_capacity(rows.len());
    for row in rows {
        changes.push(Change {
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
            type_number: core.type_number(&row.job.type_name),
            priority: row.job.priority,
            chain: row.chain,
            chain_type_number: row.chain_type(core),
            chain_created_at: row.chain_created_at.unwrap_or(now),
            keyed: row.keyed,
            error: None,
        });
    }
    core.change(session, &changes, now).await?;
    insert_edges(session, core, rows).await?;
    Ok(Ok(now))
}

/// Writes the rows of `job`, and returns those that were written with the time of their creation.
async fn insert_jobs(
    session: &mut Session<'_>,
    core: &Core,
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
        types.push(core.type_number(&row.job.type_name));
        chain_types.push(row.chain_type(core));
        chain_times.push(row.chain_created_at.map(Timestamp::as_micros));
        blockers.push(integer(row.job.blockers.len()));
        priorities.push(row.job.priority);
        keyed.push(row.keyed);
        max_attempts.push(row.job.max_attempts.map(i64::from));
        keys.push(row.deduplication.map(|wanted| wanted.key.clone()));
        traces.push(row.job.trace_context.clone());
        inputs.push(row.job.input.as_str().to_owned());
    }
    let insert = query(&core.sql.insert_jobs)
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
    let created = |found| Ok((row::get(found, 0)?, row::get(found, 1)?));
    found.iter().map(created).collect()
}

async fn insert_edges(session: &mut Session<'_>, core: &Core, rows: &[NewRow<'_>]) -> Result<(), StateError> {
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
    let insert = query(&core.sql.insert_blockers).bind(jobs).bind(positions).bind(chains);
    session.execute(insert).await
}

/// The first item to be created whose id exists, or is given twice.
async fn taken_id(
    session: &mut Session<'_>,
    core: &Core,
    chains: &[NewChain],
    duplicates: &HashMap<usize, CreatedChain>,
) -> Result<Option<Refusal>, StateError> {
    let new = |(place, chain): (usize, &NewChain)| (!duplicates.contains_key(&place)).then_some(chain.job.id);
    let ids: Vec<JobId> = chains.iter().enumerate().filter_map(new).collect();
    let mut taken = taken(session, core, ids.iter().copied()).await?;
    let first = ids.into_iter().find(|id| !taken.insert(*id));
    Ok(first.map(Refusal::IdTaken))
}

/// Those of the ids that exist.
pub(crate) async fn taken(
    session: &mut Session<'_>,
    core: &Core,
    ids: impl Iterator<Item = JobId>,
) -> Result<HashSet<JobId>, StateError> {
    let ids: Vec<Uuid> = ids.map(|id| id.as_uuid()).collect();
    let found = session.fetch(query(&core.sql.taken_ids).bind(ids)).await?;
    found
        .iter()
        .map(|found| row::get(found, 0).map(JobId::from_uuid))
        .collect()
}
