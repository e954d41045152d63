//! Claiming jobs.

pub(crate) mod rows_without_job;
pub(crate) mod sample;
pub(crate) mod scan_start;

use std::collections::HashSet;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, Claimed, ClaimedJob};
use queuert::{ChainId, Fence, JobId, JobRecord, JobStatus, Lease, StateError, Timestamp, TypeName};
use sqlx::postgres::PgRow;
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::connect::{Access, Mode};
use crate::connection::session::{Session, query};
use crate::error::{corrupt, has_code, translate};
use crate::row::{self, Decoder, columns};
use crate::statements::claim::{Claim, LARGE, LockedRows, Weighing, needed_entries};
use crate::store::{Store, count, micros};
use crate::transaction::Work;
use crate::type_ids::TypeNames;
use crate::verbs::claim::scan_start::Scan;
use crate::verbs::query::{blockers_of, stored_jobs};

/// When to look again for a due job that was locked: soon, but not in a hot loop.
const LOCKED_JOB_DELAY: Duration = Duration::from_millis(50);

/// How many due jobs are moved from `later` to `ready` per type and statement, as written in the statement.
const PROMOTED_AT_ONCE: i64 = 1_000;

/// How many such statements come before one claim, at most.
const MOST_PROMOTIONS: usize = 100;

/// How far past locked rows a claim looks, at most.
const FARTHEST: usize = 1_000_000;

columns! {
    /// The columns of `claim/claim.sql` that describe a job.
    struct ClaimedColumns {
        id, type_id, chain_id, chain_type_id, chain_index, input, priority, max_attempts, created_at, deduplication_key,
        trace_context, blockers, attempt, claims, scheduled_at, rank, queue_type_id, failure_attempt, failure_at,
        failure_message,
    }
}

/// The types that are claimed, each once, with their numbers and their leases, in order of the numbers.
struct Queues {
    type_ids: Vec<i32>,
    leases: Vec<i64>,
    /// How many bytes a job with blockers counts for, besides its input.
    outputs: Vec<i64>,
    names: Vec<TypeName>,
}

impl Queues {
    fn of(store: &Store, claim: &ClaimJobs) -> Self {
        let mut seen = HashSet::new();
        let mut types = Vec::with_capacity(claim.types.len());
        for claimed in claim.types.iter().filter(|claimed| seen.insert(&claimed.name)) {
            types.push((store.type_id(&claimed.name), micros(claimed.lease), &claimed.name));
        }
        types.sort_unstable_by_key(|(type_id, ..)| *type_id);
        Self {
            type_ids: types.iter().map(|(type_id, ..)| *type_id).collect(),
            leases: types.iter().map(|(_, lease, _)| *lease).collect(),
            outputs: types
                .iter()
                .map(|(.., name)| count(claim.outputs.expected(name.as_str())))
                .collect(),
            names: types.into_iter().map(|(.., name)| name.clone()).collect(),
        }
    }

    /// The name of a type, and its lease.
    fn find(&self, type_id: i32) -> Option<(TypeName, i64)> {
        let place = self.type_ids.binary_search(&type_id).ok()?;
        Some((self.names[place].clone(), self.leases[place]))
    }
}

/// A job that a claim has taken.
struct TakenJob {
    rank: i64,
    /// How many chains it was created to wait for.
    blockers: u32,
    job: JobRecord,
}

impl TakenJob {
    fn decode(
        names: &mut TypeNames<'_>,
        at: ClaimedColumns,
        claim: &ClaimJobs,
        queues: &Queues,
        now: Timestamp,
        row: &PgRow,
    ) -> Result<Self, StateError> {
        let id = JobId::from_uuid(at.id.get(row)?);
        let mut columns = Decoder::of(row);
        // The job was in the queue of this type. Whatever else its row says, no other processor may run it.
        let queue: i32 = columns.get(at.queue_type_id);
        let type_id: i32 = columns.get(at.type_id);
        let (type_name, lease) = queues
            .find(queue)
            .ok_or_else(|| corrupt(format!("job {id} was not asked for")))?;
        if type_id != queue {
            columns.note("type_id", format_args!("is {type_id} in `job` and {queue} in `ready`"));
        }
        let mut job = JobRecord {
            id,
            type_name,
            chain_id: ChainId::from_uuid(columns.get(at.chain_id)),
            chain_type: columns.type_name(names, at.chain_type_id),
            chain_index: columns.small(at.chain_index),
            input: columns.payload(at.input),
            output: None,
            status: JobStatus::Running,
            priority: columns.get(at.priority),
            attempt: columns.small(at.attempt),
            claims: columns.small(at.claims),
            max_attempts: columns.max_attempts(at.max_attempts),
            created_at: columns.time(at.created_at),
            scheduled_at: columns.time(at.scheduled_at),
            started_at: Some(now),
            ended_at: None,
            completed_by: None,
            last_error: columns.failure(at.failure_attempt, at.failure_at, at.failure_message),
            lease: Some(Lease {
                owner: claim.worker.clone(),
                until: Timestamp::from_micros(now.as_micros().saturating_add(lease)),
                fence: claim.fence,
            }),
            deduplication_key: columns.get(at.deduplication_key),
            trace_context: columns.get(at.trace_context),
            unreadable: None,
        };
        let (rank, blockers) = (columns.get(at.rank), columns.small(at.blockers));
        let chain_type_id = columns.get(at.chain_type_id);
        columns.compare_chain_type(job.chain_index, type_id, chain_type_id);
        job.unreadable = columns.problem();
        Ok(Self { rank, blockers, job })
    }
}

/// What one claim statement found.
struct Taken {
    jobs: Vec<TakenJob>,
    now: Timestamp,
    /// When the next job in `later` is due.
    next_later: Option<Timestamp>,
    /// How many rows of `ready` the claim looked at, if it took fewer than it was asked for.
    rows_seen: Option<usize>,
    /// How many more jobs it took, and put back because there were no bytes left for them.
    put_back: usize,
    /// Where it began to read `later`.
    later_from: i64,
    /// How many index entries it read of `ready` and of `later`.
    ready_entries: i64,
    later_entries: i64,
}

impl Taken {
    /// Whether there were jobs that the claim did not take, although it took fewer than it was asked for.
    fn has_missed_jobs(&self) -> bool {
        self.rows_seen.is_some_and(|seen| seen > self.count())
    }

    /// How many jobs it took, those that it put back included.
    fn count(&self) -> usize {
        self.jobs.len() + self.put_back
    }

    /// The time of a job in `later` that is due.
    fn due_later(&self) -> Option<Timestamp> {
        self.next_later.filter(|time| *time <= self.now)
    }
}

/// How one claim statement looks for jobs.
#[derive(Clone, Copy)]
struct Search {
    locked_rows: LockedRows,
    limit: usize,
    reach: usize,
    /// Whether jobs are taken although jobs in `later` are due.
    ignores_later: bool,
}

/// Claims jobs of types that have been interned.
pub(crate) async fn claim(access: &Access, store: &Store, claim: &ClaimJobs) -> Result<Claimed, StateError> {
    let queues = Queues::of(store, claim);
    // In a transaction of several statements the lock timeout would outlast the claim.
    let may_wait = access.mode() == Mode::Own && claim.limit >= LARGE;
    let locked_rows = if may_wait && !store.contention.is_expected() {
        LockedRows::Wait
    } else {
        LockedRows::Skip
    };
    let mut work = Work::statement(access).await?;
    let mut claimed = claim_by(&mut work.session(), store, claim, &queues, locked_rows).await;
    if let Err(error) = &claimed
        && locked_rows == LockedRows::Wait
        && is_lock_failure(error)
    {
        store.contention.note(true);
        work.rollback().await?;
        work = Work::statement(access).await?;
        claimed = claim_by(&mut work.session(), store, claim, &queues, LockedRows::Skip).await;
    }
    let claimed = claimed.map_err(translate)??;
    work.commit().await?;
    Ok(claimed)
}

/// Whether another transaction has a row locked: lock_not_available, or deadlock_detected where that comes first.
fn is_lock_failure(error: &sqlx::Error) -> bool {
    ["55P03", "40P01"].iter().any(|code| has_code(error, code))
}

/// The outer error is that of the claim's statement, which the caller may retry.
async fn claim_by(
    session: &mut Session<'_>,
    store: &Store,
    claim: &ClaimJobs,
    queues: &Queues,
    locked_rows: LockedRows,
) -> Result<Result<Claimed, StateError>, sqlx::Error> {
    let mut search = Search {
        locked_rows,
        limit: claim.limit,
        reach: reach(claim.limit),
        ignores_later: false,
    };
    macro_rules! take {
        ($search:expr) => {
            match take(session, store, claim, queues, $search).await? {
                Ok(taken) => taken,
                Err(error) => return Ok(Err(error)),
            }
        };
    }
    let mut taken = take!(search);
    if taken.jobs.is_empty() && taken.due_later().is_some() {
        if let Err(error) = promote(session, store, &queues.type_ids, taken.later_from).await {
            return Ok(Err(error));
        }
        search.ignores_later = true;
        taken = take!(search);
    }
    let was_overtaken = locked_rows == LockedRows::Wait && taken.has_missed_jobs();
    if claim.limit >= LARGE {
        store.contention.note(was_overtaken);
    }
    if was_overtaken && taken.jobs.is_empty() {
        // Other claims were faster to take all jobs that were seen. A claim that skips locked rows finds those behind them.
        search = Search {
            locked_rows: LockedRows::Skip,
            ignores_later: true,
            ..search
        };
        taken = take!(search);
    }
    // All rows in reach that were not taken are locked. Jobs behind them must not wait for that.
    while taken.jobs.is_empty() && taken.rows_seen == Some(search.reach) && search.reach < FARTHEST {
        search = Search {
            locked_rows: LockedRows::Skip,
            reach: search.reach * 10,
            ignores_later: true,
            ..search
        };
        taken = take!(search);
    }
    let mut next_due = if was_overtaken && !taken.jobs.is_empty() {
        // There may be more behind the jobs that other claims took. The jobs that were taken are not put at risk for it: they
        // have committed, and another statement may fail.
        Some(Duration::ZERO)
    } else {
        next_due(&taken, claim.limit)
    };
    if taken.jobs.len() < claim.limit {
        // Jobs before the start of the scan are found by the next scan of everything, and by nothing else.
        let now = Instant::now();
        let scans = store.scan_starts.of(&queues.type_ids, |starts| {
            [starts.ready.next_full_scan(now), starts.later.next_full_scan(now)]
        });
        next_due = scans.into_iter().flatten().chain(next_due).min();
    }
    let mut jobs = taken.jobs;
    // Rows come back in the order in which they lie in the table.
    jobs.sort_unstable_by_key(|taken| (taken.rank, taken.job.id));
    let jobs = jobs.into_iter().map(|taken| (taken.job, taken.blockers)).collect();
    let jobs = with_blockers(session, store, jobs).await;
    Ok(jobs.map(|jobs| Claimed { jobs, next_due }))
}

/// The jobs that run under a fence.
pub(crate) async fn claimed(
    session: &mut Session<'_>,
    store: &Store,
    fence: Fence,
) -> Result<Vec<ClaimedJob>, StateError> {
    let search = query(&store.sql.running_under_fence).bind(fence.as_uuid());
    let mut ids = Vec::new();
    for found in &session.fetch(search).await? {
        ids.push(JobId::from_uuid(row::get(found, "id")?));
    }
    let mut stored = stored_jobs(session, store, &ids).await?;
    // Between the two statements a job may have been taken back.
    stored.retain(|stored| stored.job.lease.as_ref().is_some_and(|lease| lease.fence == fence));
    let jobs = stored.into_iter().map(|stored| (stored.job, stored.blockers));
    with_blockers(session, store, jobs.collect()).await
}

/// Adds the chains for which jobs have waited. Each job comes with their number.
async fn with_blockers(
    session: &mut Session<'_>,
    store: &Store,
    jobs: Vec<(JobRecord, u32)>,
) -> Result<Vec<ClaimedJob>, StateError> {
    let waited = jobs.iter().filter(|(_, blockers)| *blockers > 0);
    let waited: Vec<JobId> = waited.map(|(job, _)| job.id).collect();
    let mut found = blockers_of(session, store, &waited).await?;
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
    let later = taken.next_later.map(|time| {
        if time <= taken.now {
            // The job was locked, or there were too many of them to be moved to `ready` in one go.
            LOCKED_JOB_DELAY
        } else {
            time.saturating_duration_since(taken.now)
        }
    });
    if taken.has_missed_jobs() {
        return Some(later.map_or(LOCKED_JOB_DELAY, |later| later.min(LOCKED_JOB_DELAY)));
    }
    later
}

/// Runs one claim statement. The outer error is that of the statement.
async fn take(
    session: &mut Session<'_>,
    store: &Store,
    claim: &ClaimJobs,
    queues: &Queues,
    search: Search,
) -> Result<Result<Taken, StateError>, sqlx::Error> {
    let begun_at = Instant::now();
    let type_ids = &queues.type_ids;
    let (ready_from, later_from) = store.scan_starts.of(type_ids, |starts| {
        (starts.ready.from(begun_at), starts.later.from(begun_at))
    });
    let weighing = Weighing::of(claim);
    let text = Claim::new(type_ids.len(), search.reach, search.locked_rows, weighing);
    let mut statement = query(&store.claim_statement(text))
        .bind(type_ids.as_slice())
        .bind(count(search.limit))
        .bind(queues.leases.as_slice())
        .bind(claim.worker.as_str())
        .bind(claim.fence.as_uuid())
        .bind(search.ignores_later)
        .bind(ready_from)
        .bind(later_from);
    if weighing == Weighing::Bytes {
        // The first job is taken in any case.
        statement = statement.bind(count(claim.at_least.max(1))).bind(count(claim.bytes));
        statement = statement.bind(queues.outputs.as_slice());
    }
    let rows = session.try_fetch(statement).await?;
    let taken = read(session, store, claim, queues, later_from, &rows).await;
    Ok(taken.inspect(|taken| note_scan(store, queues, search, begun_at, ready_from, taken)))
}

/// Decodes the answer of a claim statement.
async fn read(
    session: &mut Session<'_>,
    store: &Store,
    claim: &ClaimJobs,
    queues: &Queues,
    later_from: i64,
    rows: &[PgRow],
) -> Result<Taken, StateError> {
    let Some((last, rows)) = rows.split_last() else {
        return Err(corrupt("a claim has no answer"));
    };
    let number = |name: &str| row::get::<Option<i64>>(last, name);
    let size = |number: i64| usize::try_from(number).unwrap_or_default();
    let mut taken = Taken {
        jobs: Vec::with_capacity(rows.len()),
        now: Timestamp::from_micros(row::get(last, "now")?),
        next_later: row::time(last, "next_later")?,
        rows_seen: number("rows_seen")?.map(size),
        put_back: number("put_back")?.map_or(0, size),
        later_from,
        ready_entries: row::get(last, "ready_entries")?,
        later_entries: row::get(last, "later_entries")?,
    };
    let at = ClaimedColumns::of(last)?;
    let mut chain_types: HashSet<i32> = HashSet::new();
    // A row that cannot be read says so where it is decoded.
    chain_types.extend(rows.iter().filter_map(|row| at.chain_type_id.get::<i32>(row).ok()));
    store.name_types(session, chain_types).await?;
    let mut names = TypeNames::new(store);
    for row in rows {
        let job = TakenJob::decode(&mut names, at, claim, queues, taken.now, row)?;
        taken.jobs.push(job);
    }
    if let Some(ids) = row::get::<Option<Vec<Uuid>>>(last, "rows_without_job")? {
        store.rows_without_job.remember(&ids);
    }
    Ok(taken)
}

/// Takes note of where the next claims may begin to read.
fn note_scan(store: &Store, queues: &Queues, search: Search, begun_at: Instant, ready_from: i64, taken: &Taken) {
    let type_ids = &queues.type_ids;
    // Jobs in `later` that are due have kept the claim from taking any, or all rows in reach are locked.
    let due = taken.due_later();
    let was_overtaken = search.locked_rows == LockedRows::Wait && taken.has_missed_jobs();
    let tells_nothing =
        (due.is_some() && !search.ignores_later) || taken.rows_seen == Some(search.reach) || was_overtaken;
    let all_taken = if taken.count() < search.limit && taken.put_back == 0 {
        Some(taken.now.as_micros())
    } else {
        taken.jobs.iter().map(|taken| taken.rank).max()
    };
    let ready = Scan {
        begun_at,
        from: ready_from,
        dead_entries: taken.ready_entries - count(needed_entries(type_ids.len(), taken.count())),
        taken: all_taken.filter(|_| !tells_nothing),
    };
    let later = Scan {
        begun_at,
        from: taken.later_from,
        dead_entries: taken.later_entries - count(type_ids.len()),
        taken: Some(due.unwrap_or(taken.now).as_micros()),
    };
    let now = Instant::now();
    store.scan_starts.of(type_ids, |starts| {
        starts.ready.scanned(ready, now);
        starts.later.scanned(later, now);
    });
}

/// Moves jobs that have become due from `later` to `ready`, as far as the last claim could see them.
async fn promote(session: &mut Session<'_>, store: &Store, type_ids: &[i32], from: i64) -> Result<(), StateError> {
    for _ in 0..MOST_PROMOTIONS {
        let promote = query(&store.sql.promote)
            .bind(type_ids.to_vec())
            .bind(store.step())
            .bind(from);
        let rows = session.fetch(promote).await?;
        let found = rows.first().ok_or_else(|| corrupt("a promotion has no answer"))?;
        if let Some(rank) = row::get::<Option<i64>>(found, "smallest_rank")? {
            store.scan_starts.of(type_ids, |starts| starts.ready.put(rank));
        }
        if row::get::<i64>(found, "moved")? < PROMOTED_AT_ONCE {
            break;
        }
    }
    Ok(())
}
