//! What a claim touches, however much lies around it: rows, pages and time, read from the plan of the very statement
//! that the adapter has prepared. A plan that reads a table as a whole or sorts fails the case.

use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, ClaimedJob, Outcome, Settlement, StateAdapter};
use queuert::{Client, Fence, JobType, WorkerId};
use queuert_measured::{Cost, Figure};
use queuert_postgres::PostgresState;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

use super::ours::{SendLetter, fill};
use super::server::{SCHEMA, Server};
use crate::measure::{BoxError, Report, Stopwatch, quantile, sorted};

const CLAIMED: usize = 100;
const CLAIMS: usize = 30;
const OTHER: &str = "somebody-elses-letters";
const LEASE: Duration = Duration::from_secs(600);

/// Nothing of a plan may be one of these.
const FORBIDDEN: [&str; 4] = ["Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort"];

struct Flat {
    server: Server,
    /// With one connection, so that its statements can be found.
    state: PostgresState,
    figures: Vec<Figure>,
}

pub(super) async fn run(divide: usize) -> Result<Report, BoxError> {
    let server = Server::clean().await?;
    let state = server.state(Some(1)).await?;
    // So that the types have numbers and there is a claim to read the plan of.
    fill(&Client::new(state.clone()), CLAIMED).await?;
    let mut flat = Flat {
        server,
        state,
        figures: Vec::new(),
    };
    let first = flat.claim().await?;
    flat.release(&first).await?;
    flat.clear().await?;
    flat.measure("backlog 0").await?;
    flat.ready(SendLetter::NAME, 1_000 / divide).await?;
    flat.measure("backlog 1k").await?;
    flat.ready(SendLetter::NAME, 99_000 / divide).await?;
    flat.measure("backlog 100k").await?;
    flat.finished(1_000_000 / divide).await?;
    flat.measure("and 1M finished").await?;
    flat.later(200_000 / divide).await?;
    flat.measure("and 200k due later").await?;
    flat.ready(OTHER, 100_000 / divide).await?;
    flat.measure("and 100k ready of another type").await?;
    flat.running(10_000 / divide).await?;
    flat.measure("and 10k running").await?;
    // Rows that are gone but that this snapshot still sees cannot be forgotten.
    let mut holder = PgConnection::connect_with(&flat.state.pool().connect_options()).await?;
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()";
    sqlx::raw_sql(hold).execute(&mut holder).await?;
    flat.measure("and a snapshot held").await?;
    flat.consume(20_000 / divide).await?;
    flat.measure("and 20k claimed since the snapshot").await?;
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await?;
    flat.measure("and the snapshot gone").await?;
    flat.state.close().await;
    flat.server.described(Report::from(flat.figures)).await
}

impl Flat {
    fn claim_of(limit: usize) -> ClaimJobs {
        let types = vec![ClaimType {
            name: SendLetter::NAME.into(),
            lease: LEASE,
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        ClaimJobs::new(types, limit, WorkerId::new("benchmark"), fence)
    }

    async fn claim(&self) -> Result<(Fence, Vec<ClaimedJob>), BoxError> {
        let claim = Self::claim_of(CLAIMED);
        Ok((claim.fence, self.state.claim_jobs(&claim).await?.jobs))
    }

    /// Gives jobs back to where they were.
    async fn release(&self, (fence, jobs): &(Fence, Vec<ClaimedJob>)) -> Result<(), BoxError> {
        let settlement = |claimed: &ClaimedJob| Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence: *fence,
                worker: WorkerId::new("benchmark"),
            },
            outcome: Outcome::Release,
        };
        let settlements: Vec<Settlement> = jobs.iter().map(settlement).collect();
        self.state.settle_jobs(None, &settlements).await?;
        Ok(())
    }

    async fn consume(&self, jobs: usize) -> Result<(), BoxError> {
        for _ in 0..jobs / CLAIMED {
            self.claim().await?;
        }
        Ok(())
    }

    async fn clear(&mut self) -> Result<(), BoxError> {
        self.server.maker().clear().await
    }

    async fn ready(&mut self, type_name: &str, jobs: usize) -> Result<(), BoxError> {
        self.server.maker().ready(type_name, jobs).await
    }

    async fn later(&mut self, jobs: usize) -> Result<(), BoxError> {
        self.server.maker().later(SendLetter::NAME, jobs).await
    }

    async fn finished(&mut self, jobs: usize) -> Result<(), BoxError> {
        self.server.maker().finished(SendLetter::NAME, jobs).await
    }

    async fn running(&mut self, jobs: usize) -> Result<(), BoxError> {
        self.server.maker().running(SendLetter::NAME, jobs).await
    }

    /// Reads the plan of a claim, and times some.
    async fn measure(&mut self, when: &str) -> Result<(), BoxError> {
        let plan = self.plan().await?;
        let mut seen = Seen::default();
        seen.look(&plan["Plan"]);
        if !seen.forbidden.is_empty() {
            return Err(format!("a claim, {when}: {:?}\n{plan:#}", seen.forbidden).into());
        }
        let count = |name: &str| plan["Plan"][name].as_f64().unwrap_or_default();
        let mut times = Vec::with_capacity(CLAIMS);
        for _ in 0..CLAIMS {
            let stopwatch = Stopwatch::start();
            let claimed = self.claim().await?;
            times.push(stopwatch.elapsed().as_secs_f64() * 1e6);
            self.release(&claimed).await?;
        }
        self.figures.push(Figure {
            name: format!("claim of {CLAIMED}, {when}"),
            unit: "µs, p50".to_owned(),
            value: quantile(&sorted(times), 0.5),
            cost: Some(Cost {
                units: 1,
                pages: Some(count("Shared Hit Blocks") + count("Shared Read Blocks")),
                rows: Some(seen.rows),
                ..Cost::default()
            }),
        });
        Ok(())
    }

    async fn plan(&mut self) -> Result<Value, BoxError> {
        let mut connection = self.state.pool().acquire().await?;
        let found = sqlx::query("SELECT name FROM pg_prepared_statements WHERE statement ~ 'synchronous_commit'")
            .persistent(false)
            .fetch_one(&mut *connection)
            .await?;
        let name: String = found.try_get(0)?;
        let number = format!("SELECT id FROM {SCHEMA}.job_type WHERE name = $1");
        let number = sqlx::query_scalar(AssertSqlSafe(number))
            .bind(SendLetter::NAME)
            .persistent(false);
        let number: i32 = number.fetch_one(&mut *connection).await?;
        let lease = LEASE.as_micros();
        let text = format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}(\
             ARRAY[{number}], {CLAIMED}, ARRAY[{lease}]::bigint[], 'benchmark', gen_random_uuid(), false, \
         -9223372036854775808, -9223372036854775808)"
        );
        // What it did is undone, as a crash would undo it.
        sqlx::raw_sql("BEGIN").execute(&mut *connection).await?;
        let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut *connection).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await?;
        let text: String = row?.try_get_unchecked(0)?;
        let mut plans: Vec<Value> = serde_json::from_str(&text)?;
        plans.pop().ok_or_else(|| "a statement has a plan".into())
    }
}

/// What was found in a plan.
#[derive(Default)]
struct Seen {
    /// Read from tables and indexes.
    rows: f64,
    forbidden: Vec<String>,
}

impl Seen {
    fn look(&mut self, node: &Value) {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        let relation = node["Relation Name"].as_str().unwrap_or_default();
        if FORBIDDEN.contains(&kind) {
            self.forbidden.push(format!("{kind} {relation}"));
        }
        if !relation.is_empty() && kind.contains("Scan") {
            let number = |name: &str| node[name].as_f64().unwrap_or_default();
            let dropped = number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
            self.rows += (number("Actual Rows") + dropped) * number("Actual Loops");
        }
        for child in node["Plans"].as_array().into_iter().flatten() {
            self.look(child);
        }
    }
}
