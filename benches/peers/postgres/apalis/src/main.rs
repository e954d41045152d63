//! apalis-postgres 1.0, and apalis-workflow for chains.
//!
//! `defaults`: `Config::default()`, the plain storage that polls, and the concurrency. `fastest`: what its documentation
//! offers for throughput: batches of 1,000, no separate locking of tasks, notifications, polling every 10 ms, and
//! `parallelize`. Chains: a `SteppedFlow`, batches of 200, no separate locking, polling every 50 ms.
//!
//! It keeps finished jobs and their results.

use std::process::ExitCode;
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use apalis_workflow::{SteppedFlow, WorkflowSink};
use harness::{BoxError, CONNECTIONS, Calls, Letter, Peer, Receipt, Settings};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "letters";
const CHAINS: &str = "chains";

fn main() -> ExitCode {
    harness::main::<Apalis>()
}

async fn process(letter: Letter, calls: Data<Calls>) -> Result<Receipt, BoxDynError> {
    calls.call(&letter);
    Ok(Receipt::of(&letter))
}

#[derive(Clone)]
struct Apalis {
    pool: PgPool,
    settings: Settings,
}

impl Apalis {
    fn storage(&self) -> PostgresStorage<Letter> {
        let config = Config::default().queue(QUEUE);
        let config = match self.settings.fastest {
            true => config.batch_size(1_000).lock_tasks(false),
            false => config,
        };
        PostgresStorage::new(&self.pool).with_config(config)
    }

    fn chains(&self) -> PostgresStorage<Letter> {
        let config = Config::default().queue(CHAINS).batch_size(200).lock_tasks(false);
        PostgresStorage::new(&self.pool).with_config(config)
    }
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis-postgres";
    const STORED: &'static str = "SELECT count(*) FROM apalis.jobs";
    const DONE: Option<&'static str> = Some(
        "SELECT count(*) FROM apalis.jobs WHERE status = 'Done' AND done_at IS NOT NULL AND last_result IS NOT NULL",
    );

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        let settings = settings.clone();
        Ok(Self { pool, settings })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        self.storage().push(letter).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        let mut tasks = Vec::with_capacity(letters.len());
        for letter in &letters {
            tasks.push(TaskBuilder::new(serde_json::to_vec(letter)?).build());
        }
        let mut connection = self.pool.acquire().await?;
        apalis_postgres::queries::push_tasks(&mut *connection, QUEUE, tasks).await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        let concurrency = self.settings.concurrency;
        let worker = WorkerBuilder::new("benchmark");
        if self.settings.fastest {
            let storage = self
                .storage()
                .with_pubsub()
                .poll_with_interval(Duration::from_millis(10));
            let worker = worker
                .backend(storage)
                .data(calls)
                .concurrency(concurrency)
                .parallelize(tokio::spawn)
                .build(process);
            tokio::spawn(worker.run());
        } else {
            let worker = worker
                .backend(self.storage())
                .data(calls)
                .concurrency(concurrency)
                .build(process);
            tokio::spawn(worker.run());
        }
        Ok(())
    }

    async fn start_chain(&self, letter: Letter) -> Result<(), BoxError> {
        self.chains().push_start(letter).await?;
        Ok(())
    }

    async fn work_chains(&self, calls: Calls) -> Result<(), BoxError> {
        async fn step(letter: Letter, calls: Data<Calls>) -> Result<Letter, BoxDynError> {
            calls.call(&letter);
            Ok(letter)
        }
        let flow = SteppedFlow::new("chains")
            .and_then(step)
            .and_then(step)
            .and_then(process);
        let storage = self.chains().poll_with_interval(Duration::from_millis(50));
        let worker = WorkerBuilder::new("benchmark")
            .backend(storage)
            .data(calls)
            .concurrency(self.settings.concurrency)
            .build(flow);
        tokio::spawn(worker.run());
        Ok(())
    }
}
