//! sqlxmq 0.6.
//!
//! `defaults`: jobs are fetched when fewer than half of the slots are busy. `fastest`: when fewer than nine tenths are,
//! and without keeping jobs alive. There is no call in Rust that starts many: its function in SQL takes an array.
//!
//! It deletes finished jobs and keeps no result.

use std::path::Path;
use std::process::ExitCode;

use harness::{BoxError, CONNECTIONS, Calls, Letter, Peer, Receipt, Settings};
use sqlx_08::PgPool;
use sqlx_08::migrate::Migrator;
use sqlx_08::postgres::PgPoolOptions;
use sqlxmq::{CurrentJob, JobRegistry, job};
use uuid::Uuid;

fn main() -> ExitCode {
    harness::main::<Sqlxmq>()
}

#[job(name = "send_letter", channel_name = "letters")]
async fn send_letter(mut current_job: CurrentJob, calls: Calls) -> Result<(), BoxError> {
    let letter: Letter = current_job.json()?.ok_or("a job without a letter")?;
    calls.call(&letter);
    // There is nowhere to keep it.
    std::hint::black_box(Receipt::of(&letter));
    current_job.complete().await?;
    Ok(())
}

#[derive(Clone)]
struct Sqlxmq {
    pool: PgPool,
    settings: Settings,
}

/// As its builder does with one job.
const INSERT: &str = "SELECT mq_insert(array_agg((id, interval '0', 4, interval '1 second', 'letters', '', NULL, \
    false, 'send_letter', payload, NULL)::mq_new_t)) FROM unnest($1::uuid[], $2::text[]) AS new(id, payload)";

impl Peer for Sqlxmq {
    const NAME: &'static str = "sqlxmq";
    // One row is always there and is no job.
    const STORED: &'static str = "SELECT count(*) FROM mq_msgs WHERE id <> uuid_nil()";
    const DONE: Option<&'static str> = None;

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        Migrator::new(Path::new(env!("SQLXMQ_MIGRATIONS")))
            .await?
            .run(&pool)
            .await?;
        let settings = settings.clone();
        Ok(Self { pool, settings })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        send_letter.builder().set_json(&letter)?.spawn(&self.pool).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        let ids: Vec<Uuid> = letters.iter().map(|_| Uuid::new_v4()).collect();
        let payloads: Vec<String> = letters.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let insert = sqlx_08::query(INSERT).bind(ids).bind(payloads);
        insert.execute(&self.pool).await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        let mut registry = JobRegistry::new(&[send_letter]);
        registry.set_context(calls);
        let most = self.settings.concurrency;
        let mut runner = registry.runner(&self.pool);
        if self.settings.fastest {
            runner.set_concurrency(most * 9 / 10, most).set_keep_alive(false);
        } else {
            runner.set_concurrency(most / 2, most);
        }
        // It would stop with its handle.
        std::mem::forget(runner.run().await?);
        Ok(())
    }
}
