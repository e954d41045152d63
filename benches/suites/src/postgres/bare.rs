//! The adapter's own statements without the library: their texts are read from a connection on which the adapter has
//! prepared them, so they cannot differ, and run on held connections with the same settings. What is bound to them is
//! made before the clock runs, as far as it is known by then.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Settlement, StateAdapter};
use queuert::{ChainId, Fence, JobId, JobType, Payload, WorkerId};
use queuert_measured::{Letter, Receipt};
use queuert_postgres::PostgresState;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, SqlStr};
use tokio::time::Instant;
use uuid::Uuid;

use super::ours::{SendLetter, fill};
use super::server::{SCHEMA, Server};
use super::{BARE_START, BATCH};
use crate::measure::{BoxError, Report, Stopwatch};
use crate::work::{batches, check_completed};

/// As long as the name of a worker that was not given one.
const WORKER: &str = "benchmarking0";
const LEASE: Duration = Duration::from_secs(60);
const LOCK_NOT_AVAILABLE: &str = "55P03";
const STEP: Duration = Duration::from_secs(60);

/// The largest claim that passes over jobs that others have locked, without having met any. Where several take the same
/// jobs, this is what the library does.
pub(super) const AMONG_OTHERS: usize = 99;

/// The statements, and what is needed to run them.
pub(super) struct Bare {
    start: SqlStr,
    claim: SqlStr,
    settle: SqlStr,
    letter_type: i32,
    options: PgConnectOptions,
}

impl Bare {
    /// Lets the adapter do everything once, on its only connection, and reads what it has prepared there.
    pub(super) async fn capture(server: &mut Server, batch: usize) -> Result<Self, BoxError> {
        let state = server.state(Some(1)).await?;
        do_everything_once(&state, batch).await?;
        let mut connection = state.pool().acquire().await?;
        let options = state.pool().connect_options().as_ref().clone();
        let prepared = sqlx::query("SELECT statement FROM pg_prepared_statements").persistent(false);
        let prepared = prepared.fetch_all(&mut *connection).await?;
        let texts: Vec<String> = prepared.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let letter_type = format!("SELECT id FROM {SCHEMA}.job_type WHERE name = $1");
        let letter_type = sqlx::query_scalar(AssertSqlSafe(letter_type)).bind(SendLetter::NAME);
        let letter_type = letter_type.fetch_one(&mut *connection).await?;
        drop(connection);
        state.close().await;
        let the_one_with = |part: &str| -> Result<SqlStr, BoxError> {
            let mut found = texts.iter().filter(|text| text.contains(part));
            match (found.next(), found.next()) {
                (Some(text), None) => Ok(AssertSqlSafe(text.clone()).into_sql_str()),
                _ => Err(format!("there is not exactly one statement with `{part}`").into()),
            }
        };
        Ok(Self {
            start: the_one_with("new_job AS (")?,
            claim: the_one_with("synchronous_commit")?,
            settle: the_one_with("ended AS (")?,
            letter_type,
            options,
        })
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, BoxError> {
        Ok(PgConnection::connect_with(&self.options).await?)
    }

    pub(super) async fn claim(
        &self,
        connection: &mut PgConnection,
        batch: usize,
        fence: Uuid,
    ) -> Result<Vec<Uuid>, BoxError> {
        let claim = sqlx::query(self.claim.clone())
            .bind(vec![self.letter_type])
            .bind(i64::try_from(batch)?)
            .bind(vec![i64::try_from(LEASE.as_micros())?])
            .bind(WORKER)
            .bind(fence)
            .bind(false)
            .bind(i64::MIN)
            .bind(i64::MIN);
        let rows = claim.fetch_all(connection).await?;
        // The last row has no job.
        let ids = rows
            .iter()
            .filter_map(|row: &PgRow| row.try_get::<Option<Uuid>, _>(0).transpose());
        Ok(ids.collect::<Result<_, _>>()?)
    }

    pub(super) async fn settle(
        &self,
        connection: &mut PgConnection,
        ends: &Ends,
        jobs: &[Uuid],
        fence: Uuid,
    ) -> Result<(), BoxError> {
        let size = jobs.len();
        loop {
            let settle = sqlx::query(self.settle.clone())
                .bind(jobs)
                .bind(vec![fence; size])
                .bind(WORKER)
                .bind(&ends.outputs[..size]);
            match settle.fetch_one(&mut *connection).await {
                Ok(settled) => {
                    let settled: Vec<Uuid> = settled.try_get(0)?;
                    return match settled.len() == size {
                        true => Ok(()),
                        false => Err(format!("{} of {size} jobs were settled", settled.len()).into()),
                    };
                }
                // The statement waits a millisecond for a lock, also for that of a table that grows. Nothing was done.
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What the ends of all batches have in common.
pub(super) struct Ends {
    outputs: Vec<Option<String>>,
}

impl Ends {
    pub(super) fn new(size: usize) -> Result<Self, BoxError> {
        let output = |number: usize| serde_json::to_string(&Receipt::of(&Letter::new(number as u64))).map(Some);
        Ok(Self {
            outputs: (0..size).map(output).collect::<Result<_, _>>()?,
        })
    }
}

pub(super) fn id() -> Uuid {
    Uuid::from_u128(fastrand::u128(..))
}

async fn do_everything_once(state: &PostgresState, batch: usize) -> Result<(), BoxError> {
    let job = JobId::from_uuid(id());
    let input = serde_json::to_string(&Letter::new(0))?;
    let chain = NewChain::new(NewJob::new(job, SendLetter::NAME, Payload::from_text(input)));
    let created = state.create_chains(None, &[chain]).await?;
    created.map_err(|refusal| format!("{refusal:?}"))?;
    let types = vec![ClaimType {
        name: SendLetter::NAME.into(),
        lease: LEASE,
    }];
    let fence = Fence::from_uuid(id());
    let claim = ClaimJobs::new(types, batch, WorkerId::new(WORKER), fence);
    state.claim_jobs(&claim).await?;
    let settlement = Settlement {
        job,
        authority: Authority::Fence {
            fence,
            worker: WorkerId::new(WORKER),
        },
        outcome: Outcome::Finish {
            output: Payload::from_text("1"),
        },
    };
    state.settle_jobs(None, &[settlement]).await?;
    Ok(())
}

/// What one start of a thousand chains binds.
pub(super) struct Starts {
    pub(super) ids: Vec<Uuid>,
    inputs: Vec<String>,
}

impl Starts {
    /// The ids grow, as the library's do.
    pub(super) fn new(first: u128, batch: Range<u64>) -> Result<Self, BoxError> {
        let inputs = batch
            .clone()
            .map(|number| serde_json::to_string(&SendLetter(Letter::new(number))));
        Ok(Self {
            inputs: inputs.collect::<Result<_, _>>()?,
            ids: batch
                .map(|number| Uuid::from_u128(first + u128::from(number)))
                .collect(),
        })
    }

    pub(super) async fn run(&self, bare: &Bare, connection: &mut PgConnection) -> Result<(), BoxError> {
        let start = sqlx::query(bare.start.clone())
            .bind(vec![bare.letter_type])
            .bind(vec![SendLetter::NAME])
            .bind(&self.ids)
            .bind(&self.inputs)
            .bind(bare.letter_type)
            .bind(0_i16)
            .bind(i64::try_from(STEP.as_micros())?);
        start.execute(connection).await?;
        Ok(())
    }
}

/// Larger than the ids that the library makes meanwhile.
pub(super) const FIRST_ID: u128 = 0x7fff_ffff_ffff_7000_8000_0000_0000_0000;

pub(super) async fn start(chains: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let bare = Bare::capture(&mut server, BATCH).await?;
    let state = server.state(None).await?;
    fill(&queuert::Client::new(state.clone()), chains).await?;
    let mut made = Vec::new();
    for batch in batches(chains, BATCH) {
        made.push(Starts::new(FIRST_ID, batch)?);
    }
    let mut connection = bare.connect().await?;
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    for starts in &made {
        starts.run(&bare, &mut connection).await?;
    }
    let mut figure = stopwatch.rate(BARE_START, "chains/s", chains);
    server.cost_since(&before, &mut figure).await?;
    if let Some(cost) = &mut figure.cost {
        cost.connections = Some(1.0);
    }
    let started: Vec<JobId> = made
        .iter()
        .flat_map(|starts| &starts.ids)
        .map(|id| JobId::from_uuid(*id))
        .collect();
    check_stored(&state, &started).await?;
    state.close().await;
    server.described(Report::from(vec![figure])).await
}

async fn check_stored(state: &PostgresState, started: &[JobId]) -> Result<(), BoxError> {
    for ids in started.chunks(BATCH) {
        let found = state.get_jobs(None, ids).await?;
        if found.len() != ids.len() || found.iter().any(|job| job.input.as_str().len() < 100) {
            return Err("bare statements started something else".into());
        }
    }
    Ok(())
}

/// One connection per task, for so long: what a single start can be.
pub(super) async fn singles(
    name: &'static str,
    backlog: usize,
    tasks: usize,
    time: Duration,
) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let bare = Arc::new(Bare::capture(&mut server, BATCH).await?);
    let state = server.state(None).await?;
    fill(&queuert::Client::new(state.clone()), backlog).await?;
    let mut held = Vec::new();
    for _ in 0..tasks {
        held.push(bare.connect().await?);
    }
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let begun = Instant::now();
    let running: Vec<_> = (0_u64..)
        .zip(held)
        .map(|(task, mut connection)| {
            let bare = Arc::clone(&bare);
            tokio::spawn(async move {
                let mut started = Vec::new();
                for number in task << 32.. {
                    if begun.elapsed() >= time {
                        break;
                    }
                    let start = Starts::new(FIRST_ID, number..number + 1)?;
                    start.run(&bare, &mut connection).await?;
                    started.push(JobId::from_uuid(start.ids[0]));
                }
                Ok::<_, BoxError>(started)
            })
        })
        .collect();
    let mut started = Vec::new();
    for task in running {
        started.extend(task.await??);
    }
    let mut figure = stopwatch.rate(name, "chains/s", started.len());
    server.cost_since(&before, &mut figure).await?;
    if let Some(cost) = &mut figure.cost {
        cost.connections = Some(tasks as f64);
    }
    check_stored(&state, &started).await?;
    state.close().await;
    server.described(Report::from(vec![figure])).await
}

pub(super) async fn drain(
    name: &'static str,
    jobs: usize,
    connections: usize,
    batch: usize,
) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let captured = match connections {
        1 => batch,
        // A claim of so many looks at five hundred rows.
        _ if batch <= 400 => batch.min(AMONG_OTHERS),
        _ => return Err("several connections take 400 jobs at once at most".into()),
    };
    let bare = Arc::new(Bare::capture(&mut server, captured).await?);
    let state = server.state(None).await?;
    let started: Vec<ChainId> = fill(&queuert::Client::new(state.clone()), jobs).await?;
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push((bare.connect().await?, Ends::new(batch)?));
    }
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let running: Vec<_> = held
        .into_iter()
        .map(|(mut connection, ends)| {
            let bare = Arc::clone(&bare);
            tokio::spawn(async move {
                loop {
                    let fence = id();
                    let jobs = bare.claim(&mut connection, batch, fence).await?;
                    if jobs.is_empty() {
                        return Ok::<_, BoxError>(());
                    }
                    bare.settle(&mut connection, &ends, &jobs, fence).await?;
                }
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    let mut figure = stopwatch.rate(name, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    if let Some(cost) = &mut figure.cost {
        cost.connections = Some(connections as f64);
    }
    check_completed(&state, &started).await?;
    state.close().await;
    server.described(Report::from(vec![figure])).await
}
