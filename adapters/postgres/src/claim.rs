//! Taking jobs.

use std::collections::HashSet;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, Claimed, ClaimedJob, QueueSample, SampleQueues};
use queuert::{ChainId, Fence, JobId, JobRecord, JobStatus, Lease, StateError, Timestamp, TypeName};
use sqlx::postgres::PgRow;
use tokio::time::Instant;
use uuid::Uuid;

use crate::claim_statement::{JOB_COLUMNS, MANY, Taking, Weighing, needed_entries};
use crate::connect::{Access, Mode};
use crate::core::{Core, count, micros};
use crate::error::{corrupt, has_code, translate};
use crate::horizon::Look as Seen;
use crate::query::{blockers_of, stored_jobs};
use crate::row::{self, Columns};
use crate::session::{Session, query};
use crate::transaction::Work;
use crate::types::Names;

/// When to look again for a due job that was locked: soon, but not in a hot loop.
const LOCKED_JOB_DELAY: Duration = Duration::from_millis(50);

/// How many due jobs are moved over per type and statement, as written in the statement.
const PROMOTED_AT_ONCE: i64 = 1_000;

/// How often jobs that have become due are moved over before a claim, at most.
const PROMOTIONS: usize = 100;

/// How far past locked rows a claim looks, at most.
const FARTHEST: usize = 1_000_000;

/// The types that are claimed, each once, with the numbers that the store has for them and their leases, in order of the
/// numbers.
struct Queues {
    numbers: Vec<i32>,
    leases: Vec<i64>,
    /// How many bytes a job with blockers counts for, besides its input.
    outputs: Vec<i64>,
    names: Vec<TypeName>,
}

impl Queues {
    fn of(core: &Core, claim: &ClaimJobs) -> Self {
        let mut seen = HashSet::new();
        let mut types = Vec::with_capacity(claim.types.len());
        for claimed in claim.types.iter().filter(|claimed| seen.insert(&claimed.name)) {
            types.push((core.type_number(&claimed.name), micros(claimed.lease), &claimed.name));
        }
        types.sort_unstable_by_key(|(number, ..)| *number);
        Self {
            numbers: types.iter().map(|(number, ..)| *number).collect(),
            leases: types.iter().map(|(_, lease, _)| *lease).collect(),
            outputs: types
                .iter()
                .map(|(.., name)| count(claim.outputs.expected(name.as_str())))
                .collect(),
            names: types.into_iter().map(|(.., name)| name.clone()).collect(),
        }
    }

    /// The type with this number, and its lease.
    fn find(&self, number: i32) -> Option<(TypeName, i64)> {
        let place = self.numbers.binary_search(&number).ok()?;
        Some((self.names[place].clone(), self.leases[place]))
    }
}

/// A job that was taken, with its rank and the number of chains that it was created to wait for.
fn taken_job(
    names: &mut Names<'_>,
    claim: &ClaimJobs,
    queues: &Queues,
    now: Timestamp,
    found: &PgRow,
) -> Result<(i64, u32, JobRecord), StateError> {
    let id = JobId::from_uuid(row::get(found, 0)?);
    let mut columns = Columns::of(found);
    // It was in the queue of this type. Whatever else its row says, no other processor may run it.
    let queue: i32 = columns.get(16, "type_id");
    let number: i32 = columns.get(1, "type_id");
    let (type_name, lease) = queues
        .find(queue)
        .ok_or_else(|| corrupt(format!("job {id} was not asked for")))?;
    if number != queue {
        columns.note("type_id", format_args!("is {number} in `job` and {queue} in `ready`"));
    }
    let mut job = JobRecord {
        id,
        type_name,
        chain_id: ChainId::from_uuid(columns.get(2, "chain_id")),
        chain_type: columns.type_name(names, 3, "chain_type_id"),
        chain_index: columns.small(4, "chain_index"),
        input: columns.payload(5, "input"),
        output: None,
        status: JobStatus::Running,
        priority: columns.get(6, "priority"),
        attempt: columns.small(12, "attempt"),
        claims: columns.small(13, "claims"),
        max_attempts: columns.max_attempts(7),
        created_at: columns.time(8, "created_at"),
        scheduled_at: columns.time(14, "scheduled_at"),
        started_at: Some(now),
        ended_at: None,
        completed_by: None,
        last_error: columns.failure(17),
        lease: Some(Lease {
            owner: claim.worker.clone(),
            until: Timestamp::from_micros(now.as_micros().saturating_add(lease)),
            fence: claim.fence,
        }),
        deduplication_key: columns.get(9, "dedup_key"),
        trace_context: columns.get(10, "trace_context"),
        unreadable: None,
    };
    let (rank, blockers) = (columns.get(15, "rank"), columns.small(11, "blockers"));
    let chain_type = columns.get(3, "chain_type_id");
    columns.compare_chain_type(job.chain_index, number, chain_type);
    job.unreadable = columns.problem();
    Ok((rank, blockers, job))
}

/// What one claim statement found.
struct Taken {
    /// With rank and number of blockers.
    jobs: Vec<(i64, u32, JobRecord)>,
    now: Timestamp,
    /// When the next job is due that still lies apart.
    ahead: Option<Timestamp>,
    /// How many rows it looked at, if it took fewer than it was asked for.
    seen: Option<usize>,
    /// How many more it took, and put back because there were no bytes left for them.
    put_back: usize,
    /// Where it began to look at those that lie apart.
    later_from: i64,
}

impl Taken {
    /// Whether there were jobs that were not taken, though fewer were taken than asked for.
    fn has_met_rivals(&self) -> bool {
        self.seen.is_some_and(|seen| seen > self.found())
    }

    /// How many it took at first.
    fn found(&self) -> usize {
        self.jobs.len() + self.put_back
    }
}

/// How to look for jobs.
#[derive(Clone, Copy)]
struct Look {
    taking: Taking,
    limit: usize,
    reach: usize,
    /// Though there are jobs that are due and lie apart.
    anyway: bool,
}

/// Claims jobs of types that have been interned.
pub(crate) async fn claim(access: &Access, core: &Core, claim: &ClaimJobs) -> Result<Claimed, StateError> {
    let queues = Queues::of(core, claim);
    // In a transaction of several statements the timeout would outlast the one that it is for.
    let may_hope = access.mode() == Mode::Own && claim.limit >= MANY;
    let taking = match may_hope && !core.rivals.expected() {
        true => Taking::Hope,
        false => Taking::Skip,
    };
    let mut work = Work::single(access).await?;
    let mut claimed = claim_by(&mut work.session(), core, claim, &queues, taking).await;
    if let Err(error) = &claimed
        && taking == Taking::Hope
        && is_in_the_way(error)
    {
        core.rivals.remember(true);
        work.undo().await?;
        work = Work::single(access).await?;
        claimed = claim_by(&mut work.session(), core, claim, &queues, Taking::Skip).await;
    }
    let claimed = claimed.map_err(translate)??;
    work.finish().await?;
    Ok(claimed)
}

/// Whether somebody else has a row locked: lock_not_available, or deadlock_detected where that comes first.
fn is_in_the_way(error: &sqlx::Error) -> bool {
    ["55P03", "40P01"].iter().any(|code| has_code(error, code))
}

/// The outer error is that of the claim's statement, for those who know what to make of it.
async fn claim_by(
    session: &mut Session<'_>,
    core: &Core,
    claim: &ClaimJobs,
    queues: &Queues,
    taking: Taking,
) -> Result<Result<Claimed, StateError>, sqlx::Error> {
    let mut look = Look {
        taking,
        limit: claim.limit,
        reach: reach(claim.limit),
        anyway: false,
    };
    macro_rules! take {
        ($look:expr) => {
            match take(session, core, claim, queues, $look).await? {
                Ok(taken) => taken,
                Err(error) => return Ok(Err(error)),
            }
        };
    }
    let mut taken = take!(look);
    if taken.jobs.is_empty() && taken.ahead.is_some_and(|ahead| ahead <= taken.now) {
        if let Err(error) = promote(session, core, &queues.numbers, taken.later_from).await {
            return Ok(Err(error));
        }
        look.anyway = true;
        taken = take!(look);
    }
    let outrun = taking == Taking::Hope && taken.has_met_rivals();
    if claim.limit >= MANY {
        core.rivals.remember(outrun);
    }
    if outrun && taken.jobs.is_empty() {
        // Nothing but jobs that others were faster to take: those behind them are there for all who skip.
        look = Look {
            taking: Taking::Skip,
            anyway: true,
            ..look
        };
        taken = take!(look);
    }
    // All that was in reach and not taken is locked: what lies behind it must not wait for that.
    while taken.jobs.is_empty() && taken.seen == Some(look.reach) && look.reach < FARTHEST {
        look = Look {
            taking: Taking::Skip,
            reach: look.reach * 10,
            anyway: true,
            ..look
        };
        taken = take!(look);
    }
    let mut next_due = match outrun && !taken.jobs.is_empty() {
        // There may be more behind those that others took. What has been taken is not put at risk for it: it has
        // committed, and another statement may fail.
        true => Some(Duration::ZERO),
        false => next_due(&taken, claim.limit),
    };
    if taken.jobs.len() < claim.limit {
        // What lies before the horizon is found by the next look at everything, and by nothing else.
        let now = Instant::now();
        let looks = core.horizons.of(&queues.numbers, |horizon| {
            [horizon.ready.next_look(now), horizon.later.next_look(now)]
        });
        next_due = looks.into_iter().flatten().chain(next_due).min();
    }
    let mut jobs = taken.jobs;
    // Rows come back in the order in which they lie in the table.
    jobs.sort_unstable_by_key(|(rank, _, job)| (*rank, job.id));
    let jobs = jobs.into_iter().map(|(_, blockers, job)| (job, blockers)).collect();
    let jobs = with_blockers(session, core, jobs).await;
    Ok(jobs.map(|jobs| Claimed { jobs, next_due }))
}

/// How many jobs at the head of a queue are looked at for the one that has been due longest.
const LOOKED_AT: usize = 100;

/// How much is ready: index entries are counted, as far as the limit goes, and few rows are read. What has become due
/// since the last claim still lies apart. Limits are literals, as in the claim.
fn sample_statement(limit: usize) -> String {
    format!(
        "WITH clock AS MATERIALIZED (SELECT {{now}} AS now) \
         SELECT r.ready + l.ready, least(h.at, l.at), clock.now \
         FROM clock CROSS JOIN unnest($1::integer[]) WITH ORDINALITY AS t(id, place) \
         CROSS JOIN LATERAL (SELECT count(*) AS ready FROM (SELECT FROM {{schema}}.ready AS r WHERE r.type_id = t.id \
         ORDER BY r.rank, r.id LIMIT {limit}) AS x) AS r \
         CROSS JOIN LATERAL (SELECT min(x.scheduled_at) AS at FROM (SELECT r.scheduled_at FROM {{schema}}.ready AS r \
         WHERE r.type_id = t.id ORDER BY r.rank, r.id LIMIT {LOOKED_AT}) AS x) AS h \
         CROSS JOIN LATERAL (SELECT count(*) AS ready, min(x.scheduled_at) AS at FROM (SELECT l.scheduled_at \
         FROM {{schema}}.later AS l WHERE l.type_id = t.id AND l.scheduled_at <= clock.now \
         ORDER BY l.scheduled_at LIMIT {limit}) AS x) AS l ORDER BY t.place"
    )
}

/// How much is ready, of types that have been interned.
pub(crate) async fn sample(
    session: &mut Session<'_>,
    core: &Core,
    sample: &SampleQueues,
) -> Result<Vec<QueueSample>, StateError> {
    let mut numbers = Vec::with_capacity(sample.types.len());
    for name in &sample.types {
        numbers.push(core.type_number(name));
    }
    let statement = core.render(&sample_statement(sample.limit));
    let rows = session.fetch(query(&statement).bind(numbers)).await?;
    let mut samples = Vec::with_capacity(rows.len());
    for (name, found) in sample.types.iter().zip(&rows) {
        let ready: i64 = row::get(found, 0)?;
        let earliest: Option<i64> = row::get(found, 1)?;
        let now = Timestamp::from_micros(row::get(found, 2)?);
        samples.push(QueueSample {
            type_name: name.clone(),
            ready: usize::try_from(ready).unwrap_or(0).min(sample.limit),
            oldest: earliest.map(|time| now.saturating_duration_since(Timestamp::from_micros(time))),
        });
    }
    Ok(samples)
}

/// What runs under a fence: a read of all that is in flight, which is little.
pub(crate) async fn claimed(
    session: &mut Session<'_>,
    core: &Core,
    fence: Fence,
) -> Result<Vec<ClaimedJob>, StateError> {
    let text = "SELECT r.id FROM {schema}.running AS r WHERE r.fence = $1";
    let rows = session.fetch(query(&core.render(text)).bind(fence.as_uuid())).await?;
    let mut ids = Vec::with_capacity(rows.len());
    for found in &rows {
        ids.push(JobId::from_uuid(row::get(found, 0)?));
    }
    let mut stored = stored_jobs(session, core, &ids).await?;
    // Between the two statements one may have been taken back.
    stored.retain(|stored| stored.job.lease.as_ref().is_some_and(|lease| lease.fence == fence));
    let jobs = stored.into_iter().map(|stored| (stored.job, stored.blockers));
    with_blockers(session, core, jobs.collect()).await
}

/// Jobs, each with how many chains it has waited for, with those chains.
async fn with_blockers(
    session: &mut Session<'_>,
    core: &Core,
    jobs: Vec<(JobRecord, u32)>,
) -> Result<Vec<ClaimedJob>, StateError> {
    let waited = jobs.iter().filter(|(_, blockers)| *blockers > 0);
    let waited: Vec<JobId> = waited.map(|(job, _)| job.id).collect();
    let mut found = blockers_of(session, core, &waited).await?;
    let jobs = jobs.into_iter().map(|(job, blockers)| ClaimedJob {
        blockers: match blockers {
            0 => Vec::new(),
            _ => found.remove(&job.id).unwrap_or_default(),
        },
        job,
    });
    Ok(jobs.collect())
}

/// How many rows to look at for a number of jobs: some may be locked. One of a few numbers, so that there are few
/// different statements.
fn reach(limit: usize) -> usize {
    // 1, 2, 10, 20, 100, ...
    let (mut class, mut factor) = (1, 2);
    while class < limit && class < FARTHEST / 10 {
        class *= factor;
        factor = 7 - factor;
    }
    (class * 4 + 100).max(limit.min(FARTHEST))
}

fn next_due(taken: &Taken, limit: usize) -> Option<Duration> {
    if taken.put_back > 0 {
        return Some(Duration::ZERO);
    }
    if taken.jobs.len() >= limit {
        return None;
    }
    let skipped = taken.has_met_rivals();
    let apart = taken.ahead.map(|ahead| match ahead <= taken.now {
        // It was locked, or there were too many of them to be moved over in one go.
        true => LOCKED_JOB_DELAY,
        false => ahead.saturating_duration_since(taken.now),
    });
    match skipped {
        true => Some(apart.map_or(LOCKED_JOB_DELAY, |apart| apart.min(LOCKED_JOB_DELAY))),
        false => apart,
    }
}

/// The outer error is that of the statement.
async fn take(
    session: &mut Session<'_>,
    core: &Core,
    claim: &ClaimJobs,
    queues: &Queues,
    look: Look,
) -> Result<Result<Taken, StateError>, sqlx::Error> {
    let begun = Instant::now();
    let numbers = &queues.numbers;
    let (ready_from, later_from) = core.horizons.of(numbers, |horizon| {
        (horizon.ready.from(begun), horizon.later.from(begun))
    });
    let weighing = Weighing::of(claim);
    let mut statement = query(&core.claim_statement(numbers.len(), look.reach, look.taking, weighing))
        .bind(numbers.as_slice())
        .bind(count(look.limit))
        .bind(queues.leases.as_slice())
        .bind(claim.worker.as_str())
        .bind(claim.fence.as_uuid())
        .bind(look.anyway)
        .bind(ready_from)
        .bind(later_from);
    if weighing == Weighing::Bytes {
        // The first job is taken in any case.
        statement = statement.bind(count(claim.at_least.max(1))).bind(count(claim.bytes));
        statement = statement.bind(queues.outputs.as_slice());
    }
    let rows = session.try_fetch(statement).await?;
    let taken = read(session, core, claim, queues, later_from, &rows).await;
    Ok(taken.map(|(taken, read)| {
        note(core, queues, look, begun, ready_from, &taken, read);
        taken
    }))
}

/// What was taken, and how many index entries were read for it.
async fn read(
    session: &mut Session<'_>,
    core: &Core,
    claim: &ClaimJobs,
    queues: &Queues,
    later_from: i64,
    rows: &[PgRow],
) -> Result<(Taken, (i64, i64)), StateError> {
    let Some((last, rows)) = rows.split_last() else {
        return Err(corrupt("a claim has no answer"));
    };
    let seen: Option<i64> = row::get(last, JOB_COLUMNS + 2)?;
    let put_back: i64 = row::get(last, JOB_COLUMNS + 6)?;
    let mut taken = Taken {
        jobs: Vec::with_capacity(rows.len()),
        now: Timestamp::from_micros(row::get(last, JOB_COLUMNS)?),
        ahead: row::time(last, JOB_COLUMNS + 1)?,
        seen: seen.map(|seen| usize::try_from(seen).unwrap_or_default()),
        put_back: usize::try_from(put_back).unwrap_or_default(),
        later_from,
    };
    let mut chain_types: HashSet<i32> = HashSet::new();
    // A row that cannot be read says so where it is read.
    chain_types.extend(rows.iter().filter_map(|found| row::get::<i32>(found, 3).ok()));
    core.name_types(session, chain_types).await?;
    let mut names = Names::new(core);
    for found in rows {
        taken.jobs.push(taken_job(&mut names, claim, queues, taken.now, found)?);
    }
    if let Some(lost) = row::get::<Option<Vec<Uuid>>>(last, JOB_COLUMNS + 5)? {
        core.lost.remember(&lost);
    }
    Ok((
        taken,
        (row::get(last, JOB_COLUMNS + 3)?, row::get(last, JOB_COLUMNS + 4)?),
    ))
}

/// Takes note of where the next claims may begin to look.
fn note(core: &Core, queues: &Queues, look: Look, begun_at: Instant, ready_from: i64, taken: &Taken, read: (i64, i64)) {
    let numbers = &queues.numbers;
    // Jobs that are due and lie apart have kept it from taking any, or whatever is in reach is locked.
    let due = taken.ahead.filter(|ahead| *ahead <= taken.now);
    let outrun = look.taking == Taking::Hope && taken.has_met_rivals();
    let blind = (due.is_some() && !look.anyway) || taken.seen == Some(look.reach) || outrun;
    let all_taken = match taken.found() < look.limit && taken.put_back == 0 {
        true => Some(taken.now.as_micros()),
        false => taken.jobs.iter().map(|(rank, ..)| *rank).max(),
    };
    let ready = Seen {
        begun_at,
        from: ready_from,
        vain: read.0 - count(needed_entries(numbers.len(), taken.found())),
        taken: all_taken.filter(|_| !blind),
    };
    let later = Seen {
        begun_at,
        from: taken.later_from,
        vain: read.1 - count(numbers.len()),
        taken: Some(due.unwrap_or(taken.now).as_micros()),
    };
    let now = Instant::now();
    core.horizons.of(numbers, |horizon| {
        horizon.ready.looked(ready, now);
        horizon.later.looked(later, now);
    });
}

/// Moves over what has become due, of what the last look could see.
async fn promote(session: &mut Session<'_>, core: &Core, types: &[i32], from: i64) -> Result<(), StateError> {
    for _ in 0..PROMOTIONS {
        let promote = query(&core.sql.promote)
            .bind(types.to_vec())
            .bind(core.step())
            .bind(from);
        let rows = session.fetch(promote).await?;
        let moved = rows.first().map(|found| row::get::<i64>(found, 0)).transpose()?;
        let first = rows
            .first()
            .map(|found| row::get::<Option<i64>>(found, 1))
            .transpose()?;
        if let Some(first) = first.flatten() {
            core.horizons.of(types, |horizon| horizon.ready.put(first));
        }
        if moved.unwrap_or_default() < PROMOTED_AT_ONCE {
            break;
        }
    }
    Ok(())
}
