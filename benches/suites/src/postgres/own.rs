//! Processors with a transaction of their own: one insert, and the completion in the same commit.

use std::sync::Arc;

use queuert::{Attempt, ChainId, Client};
use queuert_measured::{Figure, Receipt};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::bare::{Bare, Ends, id};
use super::ours::{SendLetter, fill, report};
use super::server::{SCHEMA, Server};
use crate::measure::{BoxError, Report, Stopwatch};
use crate::work::{Countdown, check_completed};

/// The user's own table.
const TABLE: &str =
    "CREATE TABLE {schema}.sent (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, address text NOT NULL)";
const INSERT: &str = "INSERT INTO {schema}.sent (address) VALUES ($1)";

fn rendered(text: &str) -> String {
    text.replace("{schema}", SCHEMA)
}

async fn filled(server: &mut Server, jobs: usize) -> Result<(PostgresState, Vec<ChainId>), BoxError> {
    let state = server.state(None).await?;
    let started = fill(&Client::new(state.clone()), jobs).await?;
    let table = AssertSqlSafe(rendered(TABLE));
    sqlx::raw_sql(table).execute(&mut server.connection).await?;
    Ok((state, started))
}

/// The rate, and the same divided by the connections that were used.
async fn figures(
    name: &str,
    figure: Figure,
    connections: f64,
    jobs: usize,
    server: &mut Server,
) -> Result<Vec<Figure>, BoxError> {
    let count = AssertSqlSafe(rendered("SELECT /* observer */ count(*) FROM {schema}.sent"));
    let sent: i64 = sqlx::query_scalar(count).fetch_one(&mut server.connection).await?;
    if usize::try_from(sent)? != jobs {
        return Err(format!("{jobs} jobs were done, and {sent} letters were sent").into());
    }
    let per_connection = Figure {
        name: format!("{name}, per connection"),
        unit: "jobs/s".to_owned(),
        value: figure.value / connections,
        cost: None,
    };
    Ok(vec![figure, per_connection])
}

pub(super) async fn ours(name: &'static str, jobs: usize, concurrency: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let (state, started) = filled(&mut server, jobs).await?;
    let client = Client::new(state.clone());
    let countdown = Countdown::new(jobs);
    let counting = countdown.clone();
    let insert: Arc<str> = rendered(INSERT).into();
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let workers = client
        .worker()
        .process(move |job: Attempt<SendLetter, PostgresState>| {
            let (counting, insert) = (counting.clone(), Arc::clone(&insert));
            async move {
                let receipt = Receipt::of(&job.0);
                let address = job.0.address.clone();
                let mut transaction = job.begin().await?;
                let insert = sqlx::query(AssertSqlSafe(&*insert)).bind(address);
                insert.execute(&mut *transaction).await?;
                let result = transaction.finish(receipt).await;
                counting.one();
                result
            }
        })
        .concurrency(concurrency)
        .start()
        .await?;
    countdown.done().await;
    workers.stop().await;
    let mut figure = stopwatch.rate(name, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    let connections = f64::from(state.pool().size());
    let figures = figures(name, figure, connections, jobs, &mut server).await?;
    let mut figures = figures.into_iter();
    let first = figures.next().ok_or("there are two figures")?;
    let mut report = report(first, &state, server).await?;
    report.figures.extend(figures);
    Ok(report)
}

/// On as many connections: each claims ten, and ends each of them in a transaction with the insert.
pub(super) async fn bare(name: &'static str, jobs: usize, connections: usize) -> Result<Report, BoxError> {
    const CLAIMED: usize = 10;
    let mut server = Server::clean().await?;
    let bare = Arc::new(Bare::capture(&mut server, CLAIMED).await?);
    let (state, started) = filled(&mut server, jobs).await?;
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push((bare.connect().await?, Ends::new(1)?));
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
                    let jobs = bare.claim(&mut connection, CLAIMED, fence).await?;
                    if jobs.is_empty() {
                        return Ok::<_, BoxError>(());
                    }
                    for job in jobs {
                        end(&bare, &mut connection, &ends, job, fence).await?;
                    }
                }
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    let mut figure = stopwatch.rate(name, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    if let Some(cost) = &mut figure.cost {
        cost.connections = Some(connections as f64);
    }
    let figures = figures(name, figure, connections as f64, jobs, &mut server).await?;
    state.close().await;
    server.described(Report::from(figures)).await
}

async fn end(
    bare: &Bare,
    connection: &mut PgConnection,
    ends: &Ends,
    job: uuid::Uuid,
    fence: uuid::Uuid,
) -> Result<(), BoxError> {
    let mut transaction = connection.begin().await?;
    let insert = sqlx::query(AssertSqlSafe(rendered(INSERT))).bind("member.000001@mail.example.com");
    insert.execute(&mut *transaction).await?;
    bare.settle(&mut transaction, ends, &[job], fence).await?;
    transaction.commit().await?;
    Ok(())
}
