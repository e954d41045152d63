//! The processes that start chains, and do to them what users and operators do.

use std::time::Duration;

use queuert::adapter::SampleQueues;
use queuert::{ChainId, Client, Error, JobId, JobType, JobTypes, Started, Step, Transaction, TypeName};
use uuid::Uuid;

use crate::Result;
use crate::jobs::{
    Fork, Gather, Hanging, Jobs, Keyed, Panicking, Root, Single, Slow, Spread, Staged, Transfer, result,
};
use crate::log::Log;
use crate::operate;
use crate::processors::long_chain;
use crate::store::{Store, tables};
use crate::work::{Orders, connect, told_to_stop};

/// A call that takes longer is given up, and its outcome is not known.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts chains of every kind, in transactions and without, until told to stop. What fails is noted, and gone on with:
/// the store may be away.
pub(crate) async fn enqueue<S: Store>(orders: &Orders) -> Result<()> {
    let mut stop = told_to_stop();
    let log = Log::create(&orders.directory, &orders.name)?;
    let mut enqueuer = Enqueuer {
        client: connect::<S>(orders, &log).await?,
        log,
        name: orders.name.clone(),
        random: fastrand::Rng::with_seed(orders.seed),
    };
    let rounds = match orders.rounds.is_empty() {
        true => (0..ROUNDS.len()).collect(),
        false => orders.rounds.clone(),
    };
    // However short its life, or the run, nothing is left out.
    for kind in &rounds {
        enqueuer.round(*kind).await?;
    }
    loop {
        let pause = Duration::from_millis(enqueuer.random.u64(0..20));
        tokio::select! {
            biased;
            _ = &mut stop => break,
            () = tokio::time::sleep(pause) => {
                // Workers that are disturbed all the time may be slower than this: what they cannot do is not tested.
                if enqueuer.is_behind().await {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
                let kind = rounds[enqueuer.random.usize(0..rounds.len())];
                enqueuer.round(kind).await?;
            }
        }
    }
    enqueuer.client.state().close().await;
    Ok(())
}

pub(crate) struct Enqueuer<S: Store> {
    pub(crate) client: Client<S>,
    pub(crate) log: Log,
    pub(crate) name: String,
    pub(crate) random: fastrand::Rng,
}

/// So many jobs may be ready before nobody starts more.
const BACKLOG: usize = 500;

/// What an enqueuer does, again and again.
pub(crate) const ROUNDS: [&str; 18] = [
    "singles",
    "long",
    "branches",
    "fan-in",
    "tree",
    "spread",
    "keyed",
    "slow",
    "money",
    "difficult",
    "late",
    "storm",
    "rolled-back",
    "untransacted",
    "awaited",
    "approved",
    "contested",
    "doomed",
];

impl<S: Store> Enqueuer<S> {
    /// Whether much is ready and nobody gets to it.
    async fn is_behind(&self) -> bool {
        let types = Jobs::graph()
            .types
            .iter()
            .map(|found| TypeName::from(found.name))
            .collect();
        let sample = SampleQueues::new(types, BACKLOG);
        let sampled = self.client.state().sample_queues(&sample);
        match tokio::time::timeout(PATIENCE, sampled).await {
            Ok(Ok(queues)) => queues.iter().map(|queue| queue.ready).sum::<usize>() >= BACKLOG,
            _ => false,
        }
    }

    async fn round(&mut self, kind: usize) -> Result<()> {
        let done = tokio::time::timeout(PATIENCE, self.one_of(kind)).await;
        let error = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => report(&*error),
            Err(_) => format!("{} took longer than {PATIENCE:?}", ROUNDS[kind]),
        };
        self.log.note(format!("error {error}"))?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(())
    }

    async fn one_of(&mut self, kind: usize) -> Result<()> {
        let n = self.random.u64(0..1_000);
        let count = self.random.u64(1..6);
        match ROUNDS[kind] {
            "singles" => self.in_transaction(Round::Singles { n, count }).await,
            "long" => self.in_transaction(Round::Long { n }).await,
            "branches" => self.in_transaction(Round::Branches { n }).await,
            "fan-in" => self.in_transaction(Round::FanIn { n, count }).await,
            "tree" => self.in_transaction(Round::Tree { n }).await,
            "spread" => self.in_transaction(Round::Spread { n }).await,
            "keyed" => self.in_transaction(Round::Keyed { n: n % 3 }).await,
            "slow" => {
                self.in_transaction(Round::Staged { n }).await?;
                // No faster than they are done: what is taken over would stand behind all the others.
                tokio::time::sleep(Duration::from_millis(self.random.u64(200..500))).await;
                Ok(())
            }
            "money" => self.in_transaction(Round::Transfers { n, count }).await,
            "difficult" => self.in_transaction(Round::Difficult { n }).await,
            "late" => self.late_dependants(n).await,
            "storm" => self.storm(n % 3).await,
            "rolled-back" => self.rolled_back(n).await,
            "untransacted" => self.without_transaction(n, count).await,
            "awaited" => self.wait(n).await,
            "approved" => operate::approve(self, n).await,
            "contested" => operate::contest(self, n).await,
            _ => operate::doom(self, n).await,
        }
    }

    /// The caller's own transaction: a row of its own per chain, and the chains.
    async fn in_transaction(&mut self, round: Round) -> Result<()> {
        let mut tx = self.client.begin().await?;
        let chains = round.start(&self.client, &mut tx).await?;
        self.commit(tx, &chains).await
    }

    pub(crate) async fn commit(&mut self, mut tx: Transaction<S>, chains: &[New]) -> Result<()> {
        for chain in chains {
            tables::started::<S>(&mut tx, chain.id, chain.type_name, &self.name, chain.existing).await?;
        }
        tx.commit().await?;
        // Whoever was told that it is committed relies on it.
        for chain in chains {
            self.log.note(format!("acknowledged {}", chain.id))?;
        }
        Ok(())
    }

    /// Dependants that are created while their blockers run or end, in transactions that have other things to do too.
    async fn late_dependants(&mut self, n: u64) -> Result<()> {
        let mut tx = self.client.begin().await?;
        let parts = self.client.start_many([Single { n: n * 2 }, Single { n: n * 2 + 1 }]);
        let parts = parts.within(&mut tx).await?;
        self.commit(tx, &all(&parts)).await?;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(self.random.u64(0..30))).await;
            let mut tx = self.client.begin().await?;
            let gather = self
                .client
                .start(Gather { n }.blocked_by(&parts))
                .within(&mut tx)
                .await?;
            tokio::time::sleep(Duration::from_millis(self.random.u64(0..20))).await;
            self.commit(tx, &[New::from(&gather)]).await?;
        }
        Ok(())
    }

    /// Several callers at once with one key.
    async fn storm(&mut self, n: u64) -> Result<()> {
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let id = self.intend()?;
            let client = self.client.clone();
            tasks.push(tokio::spawn(async move {
                let started = client.start(Keyed { n }).deduplicate(format!("key-{n}")).id(id).await;
                started.map(|started| started.id())
            }));
        }
        let mut failure = None;
        for task in tasks {
            match task.await? {
                Ok(id) => self.log.note(format!("acknowledged {id}"))?,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Nothing of it may ever be seen.
    async fn rolled_back(&mut self, n: u64) -> Result<()> {
        let mut tx = self.client.begin().await?;
        let chain = self.client.start(long_chain(n)).within(&mut tx).await?;
        self.log.note(format!("rolled-back {}", chain.id()))?;
        tables::started::<S>(&mut tx, chain.id(), "long", &self.name, false).await?;
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
            let id = self.intend()?;
            let client = self.client.clone();
            tasks.push(tokio::spawn(async move {
                let started = client.start(Single { n: n + part }).id(id).await;
                started.map(|started| started.id())
            }));
        }
        let mut failure = None;
        for task in tasks {
            match task.await? {
                Ok(id) => self.log.note(format!("acknowledged {id}"))?,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// A request handler that waits, sometimes for a worker of another process.
    async fn wait(&mut self, n: u64) -> Result<()> {
        let id = self.intend()?;
        let chain = self.client.start(Single { n }).id(id).priority(10).await?;
        let output = match self.client.wait(&chain).timeout(Duration::from_secs(3)).await {
            Ok(output) => output,
            // Its worker may have been killed.
            Err(Error::WaitTimeout { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match output == result(n) {
            true => self.log.note(format!("awaited {}", chain.id()))?,
            false => self
                .log
                .note(format!("broken the wait for {} gave {output}", chain.id()))?,
        }
        Ok(())
    }

    /// An id of a chain that has no row of its own.
    pub(crate) fn intend(&mut self) -> Result<JobId> {
        let id = JobId::from_uuid(Uuid::from_u128(self.random.u128(..)));
        self.log.note(format!("intended {}", id.as_chain()))?;
        Ok(id)
    }
}

/// An error with all that is behind it.
pub fn report(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

pub(crate) struct New {
    pub(crate) id: ChainId,
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

fn all<J: JobType>(started: &[Started<J>]) -> Vec<New> {
    started.iter().map(New::from).collect()
}

/// What one transaction starts.
enum Round {
    Singles { n: u64, count: u64 },
    Long { n: u64 },
    Branches { n: u64 },
    FanIn { n: u64, count: u64 },
    Tree { n: u64 },
    Spread { n: u64 },
    Keyed { n: u64 },
    Staged { n: u64 },
    Transfers { n: u64, count: u64 },
    Difficult { n: u64 },
}

impl Round {
    async fn start<S: Store>(self, client: &Client<S>, tx: &mut Transaction<S>) -> Result<Vec<New>> {
        Ok(match self {
            Self::Singles { n, count } => {
                let steps = (0..count).map(|part| Single { n: n + part });
                all(&client.start_many(steps).within(tx).await?)
            }
            Self::Long { n } => all(&[client.start(long_chain(n)).within(tx).await?]),
            Self::Branches { n } => all(&client.start_many([Fork { n }, Fork { n: n + 1 }]).within(tx).await?),
            Self::FanIn { n, count } => {
                // Some are due a little later, so that they end at different times.
                let step = |part| Step::new(Single { n: n + part }).delay(Duration::from_millis(part * 20));
                let parts = client.start_many((0..count).map(step)).within(tx).await?;
                let gather = client.start(Gather { n }.blocked_by(&parts)).within(tx).await?;
                let mut chains = all(&parts);
                chains.push(New::from(&gather));
                chains
            }
            Self::Tree { n } => {
                let leaves = client
                    .start_many((0..4).map(|leaf| Single { n: n + leaf }))
                    .within(tx)
                    .await?;
                let branches = leaves.chunks(2).map(|pair| Gather { n }.blocked_by(pair));
                let branches = client.start_many(branches).within(tx).await?;
                let root = client.start(Root { n }.blocked_by(&branches)).within(tx).await?;
                let mut chains = all(&leaves);
                chains.append(&mut all(&branches));
                chains.push(New::from(&root));
                chains
            }
            Self::Spread { n } => all(&[client.start(Spread { n }).within(tx).await?]),
            Self::Keyed { n } => {
                let start = client.start(Keyed { n }).deduplicate(format!("key-{n}"));
                all(&[start.within(tx).await?])
            }
            Self::Staged { n } => {
                let staged = client.start(Staged { n }).within(tx).await?;
                let slow = client.start(Slow { n }).within(tx).await?;
                vec![New::from(&staged), New::from(&slow)]
            }
            Self::Transfers { n, count } => {
                let steps = (0..count).map(|part| Transfer { n: n * 31 + part });
                all(&client.start_many(steps).within(tx).await?)
            }
            Self::Difficult { n } => {
                let panicking = client.start(Panicking { n }).within(tx).await?;
                let hanging = client.start(Hanging { n }).within(tx).await?;
                vec![New::from(&panicking), New::from(&hanging)]
            }
        })
    }
}
