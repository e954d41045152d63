//! A store in some situation: made once by the server itself, measured in every round.

use std::time::Duration;

use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, ClaimedJob, NewChain, NewJob, Outcome, Settlement, StateAdapter,
};
use queuert::{ChainId, Fence, JobId, Payload, WorkerId};
use queuert_measured::{Figure, Letter, Receipt};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::measure::{BoxError, RUN, Report, Stopwatch, quantile, sorted};
use crate::postgres::BATCH;
use crate::postgres::server::Server;
use crate::work::{batches, check_completed};

const CLAIMED: usize = 100;
const CLAIMS: usize = 50;
const LEASE: Duration = Duration::from_secs(600);
/// Below this, it is made anew in each round, so that what the last one has finished is gone.
const WORTH_KEEPING: usize = 500_000;

#[derive(Clone, Copy)]
pub(super) struct Situation {
    pub(super) name: &'static str,
    pub(super) backlog: usize,
    pub(super) finished: usize,
    pub(super) later: usize,
    pub(super) types: usize,
    /// Somebody has a snapshot from before what was claimed since.
    pub(super) held: bool,
}

impl Situation {
    pub(super) const fn backlog(name: &'static str, backlog: usize) -> Self {
        Self {
            name,
            backlog,
            finished: 0,
            later: 0,
            types: 1,
            held: false,
        }
    }

    pub(super) fn divided(self, divide: usize) -> Self {
        Self {
            backlog: (self.backlog / divide).max(CLAIMED),
            finished: self.finished / divide,
            later: self.later / divide,
            ..self
        }
    }

    fn type_names(&self) -> Vec<String> {
        (0..self.types).map(|number| format!("letter-{number}")).collect()
    }
}

pub(super) fn claim(situation: &str) -> String {
    format!("claim of {CLAIMED}, {situation}")
}

pub(super) fn start(situation: &str) -> String {
    format!("start, {situation}")
}

pub(super) fn drain(situation: &str) -> String {
    format!("drain, {situation}")
}

pub(super) async fn run(number: usize, situation: Situation, moved: usize) -> Result<Report, BoxError> {
    let mut server = Server::as_it_is().await?;
    let schema = format!("queuert_scale_{number}");
    let state = prepared(&mut server, &schema, &situation).await?;
    let store = Store {
        state: state.clone(),
        types: situation.type_names(),
    };
    let mut holder = None;
    if situation.held {
        holder = Some(hold(&server).await?);
        // Rows that are gone but that the snapshot still sees cannot be forgotten.
        let started = store.start(moved).await?;
        store.drain(started.len()).await?;
    }
    let mut figures = vec![store.claims(situation.name).await?];
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let started = store.start(moved).await?;
    let mut figure = stopwatch.rate(start(situation.name), "jobs/s", started.len());
    server.cost_since(&before, &mut figure).await?;
    figures.push(figure);
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let drained = store.drain(moved).await?;
    let mut figure = stopwatch.rate(drain(situation.name), "jobs/s", drained.len());
    server.cost_since(&before, &mut figure).await?;
    figures.push(figure);
    check_completed(&state, &drained).await?;
    if let Some(mut holder) = holder {
        sqlx::raw_sql("ROLLBACK").execute(&mut holder).await?;
    }
    if situation.finished > 0 {
        server.maker_in(&schema).check_finished(&state).await?;
    }
    state.close().await;
    server.described(Report::from(figures)).await
}

async fn hold(server: &Server) -> Result<PgConnection, BoxError> {
    let options = server.options.clone().application_name("observer");
    let mut holder = PgConnection::connect_with(&options).await?;
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()";
    sqlx::raw_sql(hold).execute(&mut holder).await?;
    Ok(holder)
}

/// Makes it, unless an earlier round of this run has.
async fn prepared(server: &mut Server, schema: &str, situation: &Situation) -> Result<PostgresState, BoxError> {
    let run = std::env::var(RUN).unwrap_or_default();
    let found = "SELECT obj_description(to_regnamespace($1)::oid, 'pg_namespace')";
    let found: Option<String> = sqlx::query_scalar(found)
        .bind(schema)
        .fetch_one(&mut server.connection)
        .await?;
    let kept = situation.backlog + situation.finished >= WORTH_KEEPING;
    if kept && !run.is_empty() && found == Some(run.clone()) {
        return server.state_in(schema, None).await;
    }
    let text = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut server.connection)
        .await?;
    let state = server.state_in(schema, None).await?;
    let mut maker = server.maker_in(schema);
    let types = situation.type_names();
    if situation.finished > 0 {
        maker.finished(&types[0], situation.finished).await?;
    }
    if situation.later > 0 {
        maker.later(&types[0], situation.later).await?;
    }
    for name in &types {
        maker.ready(name, situation.backlog / situation.types).await?;
    }
    maker.vacuum().await?;
    let text = format!("COMMENT ON SCHEMA {schema} IS '{run}'; CHECKPOINT");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut server.connection)
        .await?;
    Ok(state)
}

/// The adapter's verbs on some types.
#[derive(Clone)]
struct Store {
    state: PostgresState,
    types: Vec<String>,
}

impl Store {
    fn worker() -> WorkerId {
        WorkerId::new("benchmark")
    }

    async fn claim(&self) -> Result<(Fence, Vec<ClaimedJob>), BoxError> {
        let types = self.types.iter().map(|name| ClaimType {
            name: name.clone().into(),
            lease: LEASE,
        });
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types.collect(), CLAIMED, Self::worker(), fence);
        Ok((fence, self.state.claim_jobs(&claim).await?.jobs))
    }

    async fn settle(&self, fence: Fence, jobs: &[ClaimedJob], outcome: &Outcome) -> Result<(), BoxError> {
        let settlement = |claimed: &ClaimedJob| Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence,
                worker: Self::worker(),
            },
            outcome: outcome.clone(),
        };
        let settlements: Vec<Settlement> = jobs.iter().map(settlement).collect();
        self.state.settle_jobs(None, &settlements).await?;
        Ok(())
    }

    /// Claims and gives back.
    async fn claims(&self, name: &str) -> Result<Figure, BoxError> {
        let mut times = Vec::with_capacity(CLAIMS);
        for _ in 0..CLAIMS {
            let stopwatch = Stopwatch::start();
            let (fence, jobs) = self.claim().await?;
            times.push(stopwatch.elapsed().as_secs_f64() * 1e6);
            if jobs.len() != CLAIMED {
                return Err(format!("{} of {CLAIMED} jobs were claimed", jobs.len()).into());
            }
            self.settle(fence, &jobs, &Outcome::Release).await?;
        }
        Ok(Figure {
            name: claim(name),
            unit: "µs, p50".to_owned(),
            value: quantile(&sorted(times), 0.5),
            cost: None,
        })
    }

    /// Of all types in turn.
    async fn start(&self, chains: usize) -> Result<Vec<ChainId>, BoxError> {
        let mut started = Vec::with_capacity(chains);
        for batch in batches(chains, BATCH) {
            let mut new = Vec::with_capacity(BATCH);
            for number in batch {
                let id = JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)));
                let name = &self.types[number as usize % self.types.len()];
                let input = Payload::from_text(serde_json::to_string(&Letter::new(number))?);
                new.push(NewChain::new(NewJob::new(id, name.clone(), input)));
                started.push(ChainId::from_uuid(id.as_uuid()));
            }
            let created = self.state.create_chains(None, &new).await?;
            created.map_err(|refusal| format!("{refusal:?}"))?;
        }
        Ok(started)
    }

    /// So many, in two tasks. Gives which ones.
    async fn drain(&self, jobs: usize) -> Result<Vec<ChainId>, BoxError> {
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let store = self.clone();
                tokio::spawn(async move {
                    let output = serde_json::to_string(&Receipt::of(&Letter::new(1)))?;
                    let outcome = Outcome::Finish {
                        output: Payload::from_text(output),
                    };
                    let mut done = Vec::new();
                    while done.len() < jobs / 2 {
                        let (fence, jobs) = store.claim().await?;
                        if jobs.is_empty() {
                            break;
                        }
                        store.settle(fence, &jobs, &outcome).await?;
                        done.extend(jobs.iter().map(|claimed| claimed.job.chain_id));
                    }
                    Ok::<_, BoxError>(done)
                })
            })
            .collect();
        let mut done = Vec::new();
        for task in tasks {
            done.extend(task.await??);
        }
        Ok(done)
    }
}
