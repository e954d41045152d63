//! underway 0.2.
//!
//! There is nothing to set but the concurrency. A task runs inside the transaction that completes it, which is more
//! than others do; finished tasks are kept for two weeks, without a result. Chains are its `Job` with three steps.

use std::process::ExitCode;
use std::sync::Arc;

use harness::{BoxError, CONNECTIONS, Calls, Letter, Peer, Receipt, Settings};
use sqlx_08::postgres::PgPoolOptions;
use sqlx_08::{PgPool, Postgres, Transaction};
use underway::{Job, Queue, Task, To, Worker};

fn main() -> ExitCode {
    harness::main::<Underway>()
}

#[derive(Clone)]
struct SendLetter(Option<Calls>);

impl Task for SendLetter {
    type Input = Letter;
    type Output = ();

    async fn execute(&self, _transaction: Transaction<'_, Postgres>, letter: Letter) -> underway::task::Result<()> {
        called(self.0.as_ref(), &letter);
        Ok(())
    }
}

fn called(calls: Option<&Calls>, letter: &Letter) {
    if let Some(calls) = calls {
        calls.call(letter);
    }
    // There is nowhere to keep it.
    std::hint::black_box(Receipt::of(letter));
}

#[derive(Clone)]
struct Underway {
    pool: PgPool,
    queue: Arc<Queue<SendLetter>>,
    /// Only starts chains.
    chains: Job<Letter, Option<Calls>>,
    settings: Settings,
}

async fn chains(pool: &PgPool, calls: Option<Calls>) -> Result<Job<Letter, Option<Calls>>, BoxError> {
    let job = Job::builder()
        .state(calls)
        .step(|context, letter: Letter| async move {
            called(context.state.as_ref(), &letter);
            To::next(letter)
        })
        .step(|context, letter: Letter| async move {
            called(context.state.as_ref(), &letter);
            To::next(letter)
        })
        .step(|context, letter: Letter| async move {
            called(context.state.as_ref(), &letter);
            To::done()
        })
        .name("chains")
        .pool(pool.clone())
        .build()
        .await?;
    Ok(job)
}

impl Peer for Underway {
    const NAME: &'static str = "underway";
    const STORED: &'static str = "SELECT count(*) FROM underway.task";
    const DONE: Option<&'static str> = Some("SELECT count(*) FROM underway.task WHERE state = 'succeeded'");

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        let migrated = pool.clone();
        harness::on_one_thread(move || async move { Ok(underway::run_migrations(&migrated).await?) }).await?;
        let queue = Queue::builder().name("letters").pool(pool.clone()).build().await?;
        Ok(Self {
            chains: chains(&pool, None).await?,
            pool,
            queue: Arc::new(queue),
            settings: settings.clone(),
        })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        self.queue.enqueue(&self.pool, &SendLetter(None), &letter).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        self.queue
            .enqueue_multi(&self.pool, &SendLetter(None), &letters)
            .await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        let mut worker = Worker::new(Arc::clone(&self.queue), SendLetter(Some(calls)));
        worker.set_concurrency_limit(self.settings.concurrency);
        tokio::spawn(async move { worker.run().await });
        Ok(())
    }

    async fn start_chain(&self, letter: Letter) -> Result<(), BoxError> {
        self.chains.enqueue(&letter).await?;
        Ok(())
    }

    async fn work_chains(&self, calls: Calls) -> Result<(), BoxError> {
        let mut worker = chains(&self.pool, Some(calls)).await?.worker();
        worker.set_concurrency_limit(self.settings.concurrency);
        tokio::spawn(async move { worker.run().await });
        Ok(())
    }
}
