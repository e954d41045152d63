//! riverqueue 0.5, the River client for Rust.
//!
//! `defaults`: `QueueConfig::new(concurrency)`. `fastest`: the shortest documented pause between two fetches, a
//! millisecond, in the client that inserts too.
//!
//! It keeps finished jobs for a day. A job can record an output; this one does not, which is to its advantage.

use std::process::ExitCode;

use harness::{BoxError, CONNECTIONS, Calls, Letter, Peer, Receipt, Settings};
use riverqueue::migrate::PostgresMigrator;
use riverqueue::{Client, FETCH_COOLDOWN_MIN, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

fn main() -> ExitCode {
    harness::main::<River>()
}

#[derive(Clone, Debug, Serialize, Deserialize, JobArgs)]
#[river(kind = "send_letter")]
struct SendLetter {
    #[serde(flatten)]
    letter: Letter,
}

#[derive(Clone)]
struct River {
    pool: PgPool,
    /// Only inserts.
    client: Client,
    settings: Settings,
}

impl Peer for River {
    const NAME: &'static str = "riverqueue";
    const STORED: &'static str = "SELECT count(*) FROM river_job";
    const DONE: Option<&'static str> =
        Some("SELECT count(*) FROM river_job WHERE state = 'completed' AND finalized_at IS NOT NULL");

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        PostgresMigrator::new(pool.clone()).migrate_up().await?;
        let mut builder = Client::builder(pool.clone());
        if settings.fastest {
            builder = builder.fetch_cooldown(FETCH_COOLDOWN_MIN);
        }
        let client = builder.build()?;
        let settings = settings.clone();
        Ok(Self { pool, client, settings })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        self.client.insert(SendLetter { letter }).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        let letters = letters.into_iter().map(|letter| SendLetter { letter });
        self.client.insert_many(letters).await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        let mut workers = Workers::new();
        workers.add_fn(move |_context: WorkContext, job: Job<SendLetter>| {
            calls.call(&job.args.letter);
            std::hint::black_box(Receipt::of(&job.args.letter));
            async { Ok::<_, BoxError>(WorkOutcome::Complete) }
        })?;
        let mut builder = Client::builder(self.pool.clone())
            .workers(workers)
            .queue("default", QueueConfig::new(self.settings.concurrency));
        if self.settings.fastest {
            builder = builder.fetch_cooldown(FETCH_COOLDOWN_MIN);
        }
        builder.build()?.start()?.detach();
        Ok(())
    }
}
