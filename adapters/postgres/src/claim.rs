//! Taking jobs.

use std::collections::HashSet;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, Claimed, ClaimedJob, QueueSample, SampleQueues};
use queuert::{ChainId, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError, Timestamp};
use sqlx::postgres::PgRow;
use tokio::time::Instant;
use uuid::Uuid;

use crate::core::{Core, count, micros};
use crate::horizon::Look;
use crate::query::{blockers_of, stored_jobs};
use crate::row;
use crate::session::{Session, query};
use crate::types::Names;

/// When to look again for a due job that was locked: soon, but not in a hot loop.
const LOCKED_JOB_DELAY: Duration = Duration::from_millis(50);

/// How many due jobs are moved over per type and statement, as written in the statement.
const PROMOTED_AT_ONCE: i64 = 1_000;

/// How often jobs that have become due are moved over before a claim, at most.
const PROMOTIONS: usize = 100;

/// How far past locked rows a claim looks, at most.
const FARTHEST: usize = 1_000_000;

/// The claim: one ordered, limited branch per type, merged as far as rows are needed; each row is locked only when it
/// is taken from the merge, and those that are locked are skipped. Limits of branches are literals, because a plan for
/// any limit would sort the backlog. If a job has become due that still lies apart, nothing is taken, unless told so
/// ($6): it must be moved over first, or the order would be wrong.
///
/// $1 types, $2 how many, $3 leases, $4 worker, $5 fence, $7 and $8 the rank and the time before which nothing is looked for
/// (see `horizon`). Of a job what the caller does not know ([`taken_job`] reads it), then the rank, the time, when the next job is due that lies apart, how many rows
/// there were if fewer than asked for were taken, and how many index entries were read, of jobs that are ready and of those
/// that lie apart. One row without a job if there is none.
///
/// The server counts entries per session, so they are counted before and after: the first branch begins when the clock has
/// been read, and a subquery of its own, which is run once, when the first row is made.
pub(crate) fn statement(types: usize, reach: usize) -> String {
    let branches: Vec<String> = (1..=types)
        .map(|place| {
            let from = match place {
                1 => "(SELECT CASE WHEN clock.entries >= 0 THEN $7::bigint END FROM clock)",
                _ => "$7::bigint",
            };
            format!(
                "(SELECT r.ctid AS tid, r.rank, r.id FROM {{schema}}.ready AS r WHERE r.type_id = ($1::integer[])[{place}] \
                 AND r.rank >= {from} ORDER BY r.rank, r.id LIMIT {reach})"
            )
        })
        .collect();
    let branches = branches.join(" UNION ALL ");
    format!(
        // A claim that is forgotten in a crash of the server is a job that is ready again, and the fence refuses the
        // old attempt: no reason to wait for the disk.
        "WITH clock AS MATERIALIZED (\
         SELECT {{now}} AS now, set_config('synchronous_commit', 'off', true) AS quick, \
         pg_stat_get_xact_tuples_returned(E'{{schema_text}}.ready_claim'::regclass) AS entries, \
         pg_stat_get_xact_tuples_returned(E'{{schema_text}}.later_due'::regclass) AS entries_apart), \
         ahead AS MATERIALIZED (SELECT min(x.at) AS at FROM clock CROSS JOIN unnest($1::integer[]) AS t(id) \
         CROSS JOIN LATERAL (SELECT l.scheduled_at AS at FROM {{schema}}.later AS l WHERE l.type_id = t.id \
         AND l.scheduled_at >= $8::bigint ORDER BY l.scheduled_at LIMIT 1) AS x), \
         m AS MATERIALIZED (SELECT b.tid FROM ({branches}) AS b ORDER BY b.rank, b.id LIMIT {reach}), \
         d AS (DELETE FROM {{schema}}.ready WHERE ctid = ANY (ARRAY(\
         SELECT l.tid FROM m CROSS JOIN LATERAL (\
         SELECT r.ctid AS tid FROM {{schema}}.ready AS r WHERE r.ctid = m.tid FOR UPDATE SKIP LOCKED) AS l \
         WHERE $6::boolean OR coalesce((SELECT at FROM ahead) > (SELECT now FROM clock), true) \
         LIMIT $2::bigint)) RETURNING *), \
         c AS MATERIALIZED (SELECT d.*, CASE WHEN t.lease > 9223372036854775807 - clock.now THEN 9223372036854775807 \
         ELSE clock.now + t.lease END AS leased_until, clock.now AS claimed_at \
         FROM d JOIN unnest($1::integer[], $3::bigint[]) AS t(id, lease) ON t.id = d.type_id CROSS JOIN clock), \
         r AS (INSERT INTO {{schema}}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, claims, \
         priority, awaited, fence, owner, settled_fence) \
         SELECT c.id, c.leased_until, c.scheduled_at, c.claimed_at, c.type_id, c.attempt + 1, c.claims + 1, c.priority, \
         c.awaited, $5::uuid, $4::text, c.settled_fence FROM c) \
         SELECT x.*, clock.now, ahead.at, CASE WHEN (SELECT count(*) FROM d) < $2::bigint \
         THEN (SELECT count(*) FROM m) END, \
         (SELECT pg_stat_get_xact_tuples_returned(E'{{schema_text}}.ready_claim'::regclass)) - clock.entries, \
         (SELECT pg_stat_get_xact_tuples_returned(E'{{schema_text}}.later_due'::regclass)) - clock.entries_apart \
         FROM clock CROSS JOIN ahead LEFT JOIN (\
         SELECT j.id, j.type_id, j.chain_id, j.chain_type_id, j.chain_index, j.input, j.priority, \
         c.attempt + 1 AS attempt, c.claims + 1 AS claims, j.max_attempts, j.created_at, c.scheduled_at, c.leased_until, \
         e.attempt AS failed, e.at AS failed_at, e.message, j.dedup_key, j.trace_context, j.blockers, c.rank \
         FROM c JOIN {{schema}}.job AS j ON j.id = c.id \
         LEFT JOIN LATERAL (SELECT f.attempt, f.at, f.message FROM {{schema}}.failure AS f \
         WHERE c.claims > 0 AND f.id = c.id OFFSET 0) AS e ON true) AS x ON true"
    )
}

/// Where the columns begin that are the same in all rows of a claim.
const CLAIM_COLUMNS: usize = 20;

/// A job that was taken, with its rank and the number of chains that it was created to wait for.
fn taken_job(
    names: &mut Names<'_>,
    claim: &ClaimJobs,
    now: Timestamp,
    found: &PgRow,
) -> Result<(i64, u32, JobRecord), StateError> {
    let job = JobRecord {
        id: JobId::from_uuid(row::get(found, 0)?),
        type_name: names.of(row::get(found, 1)?)?,
        chain_id: ChainId::from_uuid(row::get(found, 2)?),
        chain_type: names.of(row::get(found, 3)?)?,
        chain_index: row::small(found, 4)?,
        input: Payload::from_text(row::get::<&str>(found, 5)?),
        output: None,
        status: JobStatus::Running,
        priority: row::get(found, 6)?,
        attempt: row::small(found, 7)?,
        claims: row::small(found, 8)?,
        max_attempts: row::get::<Option<i64>>(found, 9)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)),
        created_at: Timestamp::from_micros(row::get(found, 10)?),
        scheduled_at: Timestamp::from_micros(row::get(found, 11)?),
        started_at: Some(now),
        ended_at: None,
        completed_by: None,
        last_error: row::failure(found, 13)?,
        lease: Some(Lease {
            owner: claim.worker.clone(),
            until: Timestamp::from_micros(row::get(found, 12)?),
            fence: claim.fence,
        }),
        deduplication_key: row::get(found, 16)?,
        trace_context: row::get(found, 17)?,
    };
    Ok((row::get(found, 19)?, row::small(found, 18)?, job))
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
    /// Where it began to look at those that lie apart.
    later_from: i64,
}

/// Claims jobs of types that have been interned.
pub(crate) async fn claim(session: &mut Session<'_>, core: &Core, claim: &ClaimJobs) -> Result<Claimed, StateError> {
    let mut seen = HashSet::new();
    let types: Vec<&ClaimType> = claim
        .types
        .iter()
        .filter(|claimed| seen.insert(&claimed.name))
        .collect();
    let mut numbers = Vec::with_capacity(types.len());
    for claimed in &types {
        numbers.push(core.type_number(&claimed.name)?);
    }
    let mut reach = reach(claim.limit);
    let mut taken = take(session, core, claim, &types, &numbers, reach, false).await?;
    if taken.jobs.is_empty() && taken.ahead.is_some_and(|ahead| ahead <= taken.now) {
        promote(session, core, &numbers, taken.later_from).await?;
        taken = take(session, core, claim, &types, &numbers, reach, true).await?;
    }
    // All that was in reach and not taken is locked: what lies behind it must not wait for that.
    while taken.jobs.is_empty() && taken.seen == Some(reach) && reach < FARTHEST {
        reach *= 10;
        taken = take(session, core, claim, &types, &numbers, reach, true).await?;
    }
    let mut next_due = next_due(&taken, claim.limit);
    if taken.jobs.len() < claim.limit {
        // What lies before the horizon is found by the next look at everything, and by nothing else.
        let now = Instant::now();
        let looks = core.horizons.of(&numbers, |horizon| {
            [horizon.ready.next_look(now), horizon.later.next_look(now)]
        });
        next_due = looks.into_iter().flatten().chain(next_due).min();
    }
    let mut jobs = taken.jobs;
    // Rows come back in the order in which they lie in the table.
    jobs.sort_unstable_by_key(|(rank, _, job)| (*rank, job.id));
    let jobs = jobs.into_iter().map(|(_, blockers, job)| (job, blockers)).collect();
    Ok(Claimed {
        jobs: with_blockers(session, core, jobs).await?,
        next_due,
    })
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
        numbers.push(core.type_number(name)?);
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
    let mut class = 1;
    while class < limit && class < FARTHEST / 10 {
        class *= 10;
    }
    (class * 4 + 100).max(limit.min(FARTHEST))
}

fn next_due(taken: &Taken, limit: usize) -> Option<Duration> {
    if taken.jobs.len() >= limit {
        return None;
    }
    let skipped = taken.seen.is_some_and(|seen| seen > taken.jobs.len());
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

async fn take(
    session: &mut Session<'_>,
    core: &Core,
    claim: &ClaimJobs,
    types: &[&ClaimType],
    numbers: &[i32],
    reach: usize,
    anyway: bool,
) -> Result<Taken, StateError> {
    let leases = types.iter().map(|claimed| micros(claimed.lease));
    let begun = Instant::now();
    let (ready_from, later_from) = core.horizons.of(numbers, |horizon| {
        (horizon.ready.from(begun), horizon.later.from(begun))
    });
    let statement = query(&core.claim_statement(numbers.len(), reach))
        .bind(numbers.to_vec())
        .bind(count(claim.limit))
        .bind(leases.collect::<Vec<i64>>())
        .bind(claim.worker.as_str().to_owned())
        .bind(claim.fence.as_uuid())
        .bind(anyway)
        .bind(ready_from)
        .bind(later_from);
    let rows = session.fetch(statement).await?;
    let Some(any) = rows.first() else {
        return Err(crate::error::corrupt("a claim has no answer"));
    };
    let mut taken = Taken {
        jobs: Vec::new(),
        now: Timestamp::from_micros(row::get(any, CLAIM_COLUMNS)?),
        ahead: row::time(any, CLAIM_COLUMNS + 1)?,
        seen: row::get::<Option<i64>>(any, CLAIM_COLUMNS + 2)?.map(|seen| usize::try_from(seen).unwrap_or_default()),
        later_from,
    };
    let read: (i64, i64) = (row::get(any, CLAIM_COLUMNS + 3)?, row::get(any, CLAIM_COLUMNS + 4)?);
    if row::get::<Option<Uuid>>(any, 0)?.is_some() {
        let mut chain_types: Vec<i32> = Vec::new();
        for found in &rows {
            let chain_type = row::get(found, 3)?;
            if !chain_types.contains(&chain_type) {
                chain_types.push(chain_type);
            }
        }
        core.name_types(session, chain_types).await?;
        let mut names = Names::new(core);
        taken.jobs.reserve(rows.len());
        for found in &rows {
            taken.jobs.push(taken_job(&mut names, claim, taken.now, found)?);
        }
    }
    // Jobs that are due and lie apart have kept it from taking any, or whatever is in reach is locked.
    let due = taken.ahead.filter(|ahead| *ahead <= taken.now);
    let blind = (due.is_some() && !anyway) || taken.seen == Some(reach);
    let all_taken = match taken.jobs.len() < claim.limit {
        true => Some(taken.now.as_micros()),
        false => taken.jobs.iter().map(|(rank, ..)| *rank).max(),
    };
    let took = begun.elapsed();
    let ready = Look {
        from: ready_from,
        vain: read.0 - count(taken.jobs.len() + numbers.len()),
        taken: all_taken.filter(|_| !blind),
        took,
    };
    let later = Look {
        from: later_from,
        vain: read.1 - count(numbers.len()),
        taken: Some(due.unwrap_or(taken.now).as_micros()),
        took,
    };
    core.horizons.of(numbers, |horizon| {
        horizon.ready.looked(ready, begun + took);
        horizon.later.looked(later, begun + took);
    });
    Ok(taken)
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
