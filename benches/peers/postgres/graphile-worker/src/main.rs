//! graphile_worker 0.14, the one in Rust, on sqlx.
//!
//! `defaults`: `WorkerOptions::default()` and the concurrency. `fastest`: as in its own benchmark of throughput: a local
//! queue of 5,000, completions in batches that wait 5 ms for more, polling every 5 ms.
//!
//! It deletes finished jobs and keeps no result. Up to 5,000 jobs are locked by a process and not yet begun; after a
//! crash they wait until somebody finds the process dead. A batch of completions may be lost with the process, and
//! those jobs run again.

use std::process::ExitCode;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use harness::{BoxError, CONNECTIONS, Calls, Letter, Peer, Receipt, Settings};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const SCHEMA: &str = "graphile_worker";

fn main() -> ExitCode {
    harness::main::<Graphile>()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SendLetter(Letter);

impl TaskHandler for SendLetter {
    const IDENTIFIER: &'static str = "send_letter";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(calls) = context.get_ext::<Calls>() else {
            return Err("nobody counts".to_owned());
        };
        calls.call(&self.0);
        // There is nowhere to keep it.
        std::hint::black_box(Receipt::of(&self.0));
        Ok(())
    }
}

#[derive(Clone)]
struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
    settings: Settings,
}

impl Peer for Graphile {
    const NAME: &'static str = "graphile_worker";
    const STORED: &'static str = "SELECT count(*) FROM graphile_worker._private_jobs";
    const DONE: Option<&'static str> = None;

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        let utils = WorkerUtils::new(pool.clone(), SCHEMA);
        utils.migrate().await?;
        let settings = settings.clone();
        Ok(Self { pool, utils, settings })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        self.utils.add_job(SendLetter(letter), JobSpec::default()).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = letters.into_iter().map(|letter| (SendLetter(letter), &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        let mut options = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema(SCHEMA)
            .concurrency(self.settings.concurrency)
            .add_extension(calls)
            .define_job::<SendLetter>();
        if self.settings.fastest {
            options = options
                .poll_interval(Duration::from_millis(5))
                .complete_job_batch_delay(Duration::from_millis(5))
                .local_queue(LocalQueueConfig::default().with_size(5_000));
        }
        let worker = options.init().await?;
        tokio::spawn(async move { worker.run().await });
        Ok(())
    }
}
