//! awa 0.6, on its newer storage (a queue of append-only partitions).
//!
//! `defaults`: `QueueConfig` and the concurrency. `fastest`: as in its own benchmark of throughput: polling every 50 ms,
//! claims of 512, no deadlines, leases rotated every 50 ms. Batches of starts are its `COPY` in both, which is many
//! times faster than its `insert_many`.
//!
//! Finished jobs are kept for a while, then counted and pruned; there are no results.

use std::process::ExitCode;
use std::time::Duration;

use awa::{
    Client, InsertOpts, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig, insert_with, migrations,
};
use harness::{BoxError, CONNECTIONS, Calls, Checks, Letter, Peer, Receipt, Settings};
use serde::{Deserialize, Serialize};
use sqlx_08::PgPool;
use sqlx_08::postgres::PgPoolOptions;
use std::sync::Arc;

const QUEUE: &str = "letters";

fn main() -> ExitCode {
    harness::main::<Awa>()
}

#[derive(Debug, Serialize, Deserialize, JobArgs)]
struct SendLetter(Letter);

#[derive(Clone)]
struct Awa {
    pool: PgPool,
    storage: Arc<QueueStorage>,
    settings: Settings,
}

fn options() -> InsertOpts {
    InsertOpts {
        queue: QUEUE.to_owned(),
        ..InsertOpts::default()
    }
}

impl Peer for Awa {
    const NAME: &'static str = "awa";
    // Its counts are spread over many tables; it counts itself.
    const STORED: &'static str = "0";
    const DONE: Option<&'static str> = None;

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        let migrated = pool.clone();
        let storage = harness::on_one_thread(move || async move {
            migrations::run(&migrated).await?;
            let storage = QueueStorage::new(QueueStorageConfig::default())?;
            storage.install(&migrated).await?;
            Ok(storage)
        });
        let storage = storage.await?;
        Ok(Self {
            pool,
            storage: Arc::new(storage),
            settings: settings.clone(),
        })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        insert_with(&self.pool, &SendLetter(letter), options()).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        let jobs = letters
            .into_iter()
            .map(|letter| awa::insert::params_with(&SendLetter(letter), options()));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        self.storage.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        let concurrency = u32::try_from(self.settings.concurrency)?;
        let mut queue = QueueConfig {
            max_workers: concurrency,
            ..QueueConfig::default()
        };
        let mut builder = Client::builder(self.pool.clone());
        if self.settings.fastest {
            queue.poll_interval = Duration::from_millis(50);
            queue.claim_batch_size = 512;
            queue.deadline_duration = Duration::ZERO;
            builder = builder.queue_storage(
                QueueStorageConfig::default(),
                Duration::from_secs(1),
                Duration::from_millis(50),
            );
        }
        let client = builder
            .queue(QUEUE, queue)
            .register::<SendLetter, _, _>(move |letter, _context| {
                calls.call(&letter.0);
                // There is nowhere to keep it.
                std::hint::black_box(Receipt::of(&letter.0));
                async { Ok(JobResult::Completed) }
            })
            .build()?;
        client.start().await?;
        // It would stop with its handle.
        std::mem::forget(client);
        Ok(())
    }

    async fn stored(&self, _checks: &mut Checks) -> Result<usize, BoxError> {
        let counts = self.storage.queue_counts(&self.pool, QUEUE).await?;
        Ok(usize::try_from(counts.available + counts.running + counts.terminal)?)
    }

    async fn done(&self, _checks: &mut Checks, _all: usize) -> Result<usize, BoxError> {
        let counts = self.storage.queue_counts(&self.pool, QUEUE).await?;
        Ok(usize::try_from(counts.terminal)?)
    }
}
