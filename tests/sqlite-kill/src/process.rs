//! What the processes that are killed do: run jobs, or start chains.

use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use queuert::{Event, JobId, JobType, LeaseSettings, RetryPolicy, Started, Step};
use queuert_sqlite::{Client, SqliteNotify, SqliteState, Transaction};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::jobs::{First, Fork, Gather, Jobs, Keyed, Sabotage, Single, Spread, Staged, result, run};
use crate::log::Log;
use crate::{FILE, tables};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Workers in each working process.
pub(crate) const WORKERS: usize = 2;

async fn open(directory: &Path) -> Result<Client> {
    let state = SqliteState::open(directory.join(FILE)).await?;
    let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
    let mut tx = client.begin().await?;
    tables::create(&mut tx).await?;
    tx.commit().await?;
    Ok(client)
}

/// Ready when the input of the process ends: because the parent wants it, or because the parent has gone.
fn told_to_stop() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    // A thread of its own, because a blocking read would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    receiver
}

/// One line for the parent.
fn tell(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}");
}

pub(crate) async fn work(directory: &Path, sabotage: Sabotage) -> Result<()> {
    let stop = told_to_stop();
    let client = open(directory).await?;
    let mut events = client.events();
    let listener = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                Event::JobReaped { job, .. } => tell(&format!("reaped {}", job.id)),
                Event::StateFailed { operation, error } => tell(&format!("failed {operation}: {error}")),
                _ => {}
            }
        }
    });
    let _told = client
        .worker()
        .process_all::<Jobs, _, _>(run)
        .provide(sabotage)
        .concurrency(WORKERS)
        // Attempts that were cut off are counted, and there will be many.
        .retry(
            RetryPolicy::new()
                .initial(Duration::from_millis(20))
                .maximum(Duration::from_secs(1))
                .max_attempts(1_000_000),
        )
        // Short, so that what a killed process ran goes on while others are being killed.
        .lease(LeaseSettings::of(Duration::from_secs(1)))
        .run_until(stop)
        .await?;
    listener.abort();
    client.state().close().await?;
    Ok(())
}

/// Starts chains of every kind, in transactions and without, until told to stop.
pub(crate) async fn enqueue(directory: &Path, name: &str, seed: u64) -> Result<()> {
    let mut stop = told_to_stop();
    let client = open(directory).await?;
    let log = Log::create(directory, name)?;
    let mut enqueuer = Enqueuer {
        client,
        log,
        name: name.to_owned(),
        random: fastrand::Rng::with_seed(seed),
    };
    enqueuer.one_of_each().await?;
    loop {
        let pause = Duration::from_millis(enqueuer.random.u64(0..15));
        tokio::select! {
            biased;
            _ = &mut stop => break,
            () = tokio::time::sleep(pause) => enqueuer.one_round().await?,
        }
    }
    enqueuer.client.state().close().await?;
    Ok(())
}

struct Enqueuer {
    client: Client,
    log: Log,
    name: String,
    random: fastrand::Rng,
}

impl Enqueuer {
    /// However short its life, or the run, nothing is left out.
    async fn one_of_each(&mut self) -> Result<()> {
        let (n, count) = (2, 2);
        for round in [
            Round::Singles { n, count },
            Round::Linear { n },
            Round::Branches { n },
            Round::FanIn { n, count },
            Round::Spread { n },
            Round::Keyed { n: 0 },
            Round::Keyed { n: 1 },
            Round::Staged { n },
        ] {
            self.in_transaction(round).await?;
        }
        self.rolled_back(n).await?;
        self.without_transaction(n, count).await
    }

    async fn one_round(&mut self) -> Result<()> {
        let n = self.random.u64(0..1_000);
        let count = self.random.u64(1..6);
        match self.random.u8(0..20) {
            0..4 => self.in_transaction(Round::Singles { n, count }).await,
            4..7 => self.in_transaction(Round::Linear { n }).await,
            7..10 => self.in_transaction(Round::Branches { n }).await,
            10..12 => self.in_transaction(Round::FanIn { n, count }).await,
            12 => self.in_transaction(Round::Spread { n }).await,
            13..15 => self.in_transaction(Round::Keyed { n: n % 4 }).await,
            15 => self.in_transaction(Round::Staged { n }).await,
            16 => self.rolled_back(n).await,
            17..19 => self.without_transaction(n, count).await,
            _ => self.wait(n).await,
        }
    }

    /// The caller's own transaction: a row of its own per chain, and the chains.
    async fn in_transaction(&mut self, round: Round) -> Result<()> {
        let mut tx = self.client.begin().await?;
        let chains = round.start(&self.client, &mut tx).await?;
        for chain in &chains {
            tables::started(&mut tx, chain.id, chain.type_name, &self.name, chain.existing).await?;
        }
        tx.commit().await?;
        // Whoever was told that it is committed relies on it.
        for chain in &chains {
            self.log.note("acknowledged", chain.id.first_job())?;
        }
        Ok(())
    }

    /// Nothing of it may ever be seen.
    async fn rolled_back(&mut self, n: u64) -> Result<()> {
        let mut tx = self.client.begin().await?;
        let chain = self.client.start(First { n }).within(&mut tx).await?;
        self.log.note("rolled-back", chain.id().first_job())?;
        tables::started(&mut tx, chain.id(), First::NAME, &self.name, false).await?;
        match self.random.bool() {
            true => tx.rollback().await?,
            false => drop(tx),
        }
        Ok(())
    }

    /// Several callers at once, whose starts the store commits together.
    async fn without_transaction(&mut self, n: u64, count: u64) -> Result<()> {
        let mut tasks = Vec::new();
        for part in 0..count {
            let id = JobId::from_uuid(Uuid::from_u128(self.random.u128(..)));
            self.log.note("intended", id)?;
            let client = self.client.clone();
            tasks.push(tokio::spawn(async move {
                let started = client.start(Single { n: n + part }).id(id).await;
                started.map(|started| started.id().first_job())
            }));
        }
        for task in tasks {
            let id = task.await??;
            self.log.note("acknowledged", id)?;
        }
        Ok(())
    }

    /// A request handler that waits, sometimes for a worker of another process.
    async fn wait(&mut self, n: u64) -> Result<()> {
        let id = JobId::from_uuid(Uuid::from_u128(self.random.u128(..)));
        self.log.note("intended", id)?;
        let chain = self.client.start(Single { n }).id(id).priority(10).await?;
        let output = match self.client.wait(&chain).timeout(Duration::from_secs(5)).await {
            Ok(output) => output,
            // Its worker may have been killed.
            Err(queuert::Error::WaitTimeout { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if output != result(n) {
            return Err(format!("the wait for chain {id} gave {output} instead of {}", result(n)).into());
        }
        self.log.note("awaited", id)?;
        Ok(())
    }
}

struct New {
    id: queuert::ChainId,
    type_name: &'static str,
    existing: bool,
}

impl<J: JobType> From<&Started<J>> for New {
    fn from(started: &Started<J>) -> Self {
        Self {
            id: started.id(),
            type_name: J::NAME,
            existing: started.deduplicated(),
        }
    }
}

/// What one transaction starts.
enum Round {
    Singles { n: u64, count: u64 },
    Linear { n: u64 },
    Branches { n: u64 },
    FanIn { n: u64, count: u64 },
    Spread { n: u64 },
    Keyed { n: u64 },
    Staged { n: u64 },
}

impl Round {
    async fn start(self, client: &Client, tx: &mut Transaction) -> Result<Vec<New>> {
        Ok(match self {
            Self::Singles { n, count } => {
                let steps = (0..count).map(|part| Single { n: n + part });
                let chains = client.start_many(steps).within(tx).await?;
                chains.iter().map(New::from).collect()
            }
            Self::Linear { n } => vec![New::from(&client.start(First { n }).within(tx).await?)],
            Self::Branches { n } => {
                let chains = client.start_many([Fork { n }, Fork { n: n + 1 }]).within(tx).await?;
                chains.iter().map(New::from).collect()
            }
            Self::FanIn { n, count } => {
                // Some are due a little later, so that they end at different times.
                let step = |part| Step::new(Single { n: n + part }).delay(Duration::from_millis(part * 20));
                let parts = client.start_many((0..count).map(step)).within(tx).await?;
                let gather = client.start(Gather { n }.blocked_by(&parts)).within(tx).await?;
                parts.iter().map(New::from).chain([New::from(&gather)]).collect()
            }
            Self::Spread { n } => vec![New::from(&client.start(Spread { n }).within(tx).await?)],
            Self::Keyed { n } => {
                let start = client.start(Keyed { n }).dedup(format!("key-{n}"));
                vec![New::from(&start.within(tx).await?)]
            }
            Self::Staged { n } => vec![New::from(&client.start(Staged { n }).within(tx).await?)],
        })
    }
}
