//! Looks at the queue while it is tortured. What it says was seen in one statement, or in two that are far apart.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queuert::{Client, Error, JobId, JobStatus};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Result;
use crate::store::tables::{ACCOUNTS, EACH};
use crate::store::{self, Store};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(300);

/// A job whose blockers have all ended is unblocked in the same transaction; a page may have been read just before.
const UNBLOCKED_WITHIN: Duration = Duration::from_secs(3);

const PAGE: usize = 500;

/// The task that looks.
pub(crate) struct Oracle {
    /// Whether it has seen something that is broken.
    seen: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<String>>,
}

impl Oracle {
    pub(crate) fn start<S: Store>(url: String) -> Self {
        let (stop, stopped) = oneshot::channel();
        let seen = Arc::new(AtomicBool::new(false));
        let mut watch = Watch {
            seen: Arc::clone(&seen),
            ..Watch::default()
        };
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = stopped => {}
                () = watch.run::<S>(&url) => {}
            }
            println!("watched    {} times while it ran", watch.looks);
            watch.broken
        });
        Self { seen, stop, task }
    }

    pub(crate) fn has_seen_something(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// What was broken.
    pub(crate) async fn stop(self) -> Vec<String> {
        drop(self.stop);
        match self.task.await {
            Ok(broken) => broken,
            Err(error) => vec![format!("the oracle: {error}")],
        }
    }
}

#[derive(Default)]
struct Watch {
    seen: Arc<AtomicBool>,
    looks: usize,
    broken: Vec<String>,
    told: HashSet<String>,
    /// Jobs that wait although their blockers have completed, and since when.
    forgotten: HashMap<JobId, Instant>,
}

impl Watch {
    /// A store that is away is looked at again later.
    async fn run<S: Store>(&mut self, url: &str) {
        loop {
            if let Ok(client) = store::look::<S>(url).await {
                while self.look(&client).await.is_ok() {
                    self.looks += 1;
                    tokio::time::sleep(EVERY).await;
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look<S: Store>(&mut self, client: &Client<S>) -> Result<()> {
        self.leases(client).await?;
        self.keys(client).await?;
        self.money(client).await?;
        self.forgotten(client).await?;
        Ok(())
    }

    fn tell(&mut self, what: String) {
        self.seen.store(true, Ordering::Relaxed);
        if self.told.insert(what.clone()) {
            self.broken.push(what);
        }
    }

    /// Who runs has a lease, and nobody else has.
    async fn leases<S: Store>(&mut self, client: &Client<S>) -> Result<(), Error> {
        for job in client.list_jobs().limit(PAGE).await?.items {
            if job.lease.is_some() != (job.status == JobStatus::Running) {
                self.tell(format!("no lease without an owner: {job:?}"));
            }
        }
        for job in client
            .list_jobs()
            .statuses([JobStatus::Running])
            .limit(PAGE)
            .await?
            .items
        {
            if job.lease.is_none_or(|lease| lease.owner.as_str().is_empty()) {
                self.tell(format!(
                    "no lease without an owner: job {} runs without a lease",
                    job.id
                ));
            }
        }
        Ok(())
    }

    /// At no time are two chains with one key open.
    async fn keys<S: Store>(&mut self, client: &Client<S>) -> Result<(), Error> {
        let open = [JobStatus::Blocked, JobStatus::Pending, JobStatus::Running];
        let page = client.list_chains().types(["keyed"]).statuses(open).limit(PAGE).await?;
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for chain in page.items {
            let ids = keys.entry(chain.deduplication_key.unwrap_or_default()).or_default();
            ids.push(chain.id.to_string());
        }
        for (key, mut chains) in keys.into_iter().filter(|(_, chains)| chains.len() > 1) {
            chains.sort();
            self.tell(format!(
                "deduplication: `{key}` is the key of {} at the same time",
                chains.join(" and ")
            ));
        }
        Ok(())
    }

    /// Money is moved, and neither made nor lost, at any moment.
    async fn money<S: Store>(&mut self, client: &Client<S>) -> Result<()> {
        let mut tx = client.begin().await?;
        let rows = S::fetch(&mut tx, "SELECT CAST(sum(balance) AS TEXT) FROM account").await?;
        tx.rollback().await?;
        let sum = rows.first().and_then(|row| row.first()).cloned().unwrap_or_default();
        if sum != (ACCOUNTS * EACH).to_string() {
            self.tell(format!(
                "the money adds up: there is {sum} instead of {}",
                ACCOUNTS * EACH
            ));
        }
        Ok(())
    }

    /// Who waits for nothing any more is not left waiting.
    async fn forgotten<S: Store>(&mut self, client: &Client<S>) -> Result<(), Error> {
        let mut waiting = HashMap::new();
        let page = client
            .list_jobs()
            .statuses([JobStatus::Blocked])
            .oldest_first()
            .limit(50)
            .await?;
        for job in page.items {
            let blockers = client.get_blockers(job.id).await?;
            if blockers.iter().all(|blocker| blocker.status == JobStatus::Completed) {
                let since = self.forgotten.get(&job.id).copied().unwrap_or_else(Instant::now);
                waiting.insert(job.id, since);
                if since.elapsed() > UNBLOCKED_WITHIN {
                    let ended: Vec<String> = blockers.iter().map(|blocker| format!("{blocker:?}")).collect();
                    self.tell(format!(
                        "fan-in is exact: {job:?} is blocked, and all that it waits for has completed: {}",
                        ended.join(", ")
                    ));
                }
            }
        }
        self.forgotten = waiting;
        Ok(())
    }
}
