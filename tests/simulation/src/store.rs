//! The store of the simulation: the memory store, with calls that are slow, fail, or succeed without saying so. It
//! tells the model what was committed at the very moment of the commit.

use std::ops::{Deref, DerefMut};

use queuert::adapter::{
    ChainQuery, ClaimJobs, Claimed, CreatedChain, DeleteChains, JobQuery, NewChain, ReapLeases, ReapedJob, Refusal,
    RenewLease, Renewal, Settled, Settlement, StateAdapter, StoppedChain,
};
use queuert::memory::{MemoryConnection, MemoryTransaction};
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, StateError, StateErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::Fact;
use crate::run::Breakage;
use crate::world::World;

/// The state adapter of the simulation.
#[derive(Clone, Debug)]
pub struct Simulated(World);

/// A connection of the simulation: what was done in its transaction is held until the commit.
#[derive(Debug)]
pub struct SimulatedConnection {
    world: World,
    inner: MemoryTransaction,
    facts: Vec<Fact>,
    savepoints: Vec<(u32, usize)>,
    /// How many savepoints there were when a statement failed: rolling back to one of them mends it.
    failed: Option<usize>,
}

/// A transaction of the simulation.
#[derive(Debug)]
pub struct SimulatedTransaction(SimulatedConnection);

impl Deref for SimulatedTransaction {
    type Target = SimulatedConnection;

    fn deref(&self) -> &SimulatedConnection {
        &self.0
    }
}

impl DerefMut for SimulatedTransaction {
    fn deref_mut(&mut self) -> &mut SimulatedConnection {
        &mut self.0
    }
}

impl SimulatedConnection {
    /// Reads an entry for update.
    ///
    /// # Errors
    ///
    /// As the weather says, or a deadlock.
    pub async fn get<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, StateError> {
        self.statement("get", async |connection| connection.inner.get(key).await)
            .await
    }

    /// Writes an entry.
    ///
    /// # Errors
    ///
    /// As the weather says, or a deadlock.
    pub async fn put(&mut self, key: &str, value: impl Serialize) -> Result<(), StateError> {
        let lost = self.world.is_broken(Breakage::LosesWrites) && self.world.draw(|rng| rng.u8(..10) == 0);
        self.statement("put", async |connection| match lost {
            true => Ok(()),
            false => connection.inner.put(key, value).await,
        })
        .await
    }

    /// A statement in this transaction. Once one has failed, the others fail too, as in a database.
    async fn statement<T>(
        &mut self,
        verb: &'static str,
        run: impl AsyncFnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        if self.failed.is_some() {
            return Err(aborted());
        }
        // Until the answer is here, the statement counts as failed: a future that is dropped leaves it at that.
        self.failed = Some(self.savepoints.len());
        let world = self.world.clone();
        world.before(verb).await?;
        let value = run(self).await?;
        world.after(verb).await?;
        self.failed = None;
        Ok(value)
    }

    fn did(&mut self, fact: Fact) {
        let text = describe(&self.world, &fact);
        self.world.log(format_args!("in transaction: {text}"));
        self.facts.push(fact);
    }
}

fn aborted() -> StateError {
    StateError::new(
        StateErrorKind::Transient,
        "the transaction is aborted: a statement failed",
    )
}

impl Simulated {
    /// The store of a run.
    pub fn new(world: World) -> Self {
        Self(world)
    }

    /// The run.
    pub fn world(&self) -> &World {
        &self.0
    }

    fn did(&self, fact: Fact) {
        let text = describe(&self.0, &fact);
        self.0.log(format_args!("{text}"));
        self.0.check(|state, _| state.model.apply(&fact));
    }

    /// A call that runs by itself: `run` has its effect, `record` says what that was in the same poll.
    async fn call<T>(
        &self,
        verb: &'static str,
        run: impl Future<Output = Result<T, StateError>>,
        record: impl FnOnce(&T),
    ) -> Result<T, StateError> {
        self.0.before(verb).await?;
        let value = run.await?;
        record(&value);
        self.0.after(verb).await?;
        Ok(value)
    }

    /// A call that runs by itself or in a transaction.
    async fn call_within<T>(
        &self,
        verb: &'static str,
        within: Option<&mut SimulatedConnection>,
        run: impl AsyncFnOnce(Option<&mut MemoryConnection>) -> Result<T, StateError>,
        facts: impl FnOnce(&T) -> Vec<Fact>,
    ) -> Result<T, StateError> {
        match within {
            None => {
                let record = |value: &T| facts(value).into_iter().for_each(|fact| self.did(fact));
                self.call(verb, run(None), record).await
            }
            Some(connection) => {
                let statement = async |connection: &mut SimulatedConnection| {
                    let value = run(Some(&mut connection.inner)).await?;
                    facts(&value).into_iter().for_each(|fact| connection.did(fact));
                    Ok(value)
                };
                connection.statement(verb, statement).await
            }
        }
    }
}

impl StateAdapter for Simulated {
    type Connection = SimulatedConnection;
    type Transaction = SimulatedTransaction;

    async fn begin(&self) -> Result<SimulatedTransaction, StateError> {
        let inner = self.call("begin", self.0.memory().begin(), |_| {}).await?;
        Ok(SimulatedTransaction(SimulatedConnection {
            world: self.0.clone(),
            inner,
            facts: Vec::new(),
            savepoints: Vec::new(),
            failed: None,
        }))
    }

    async fn commit(&self, transaction: SimulatedTransaction) -> Result<(), StateError> {
        let SimulatedConnection {
            inner, facts, failed, ..
        } = transaction.0;
        if failed.is_some() {
            return Err(aborted());
        }
        if self.0.is_broken(Breakage::LosesCommits) && self.0.draw(|rng| rng.u8(..10) == 0) {
            return Ok(());
        }
        let record = |(): &()| {
            self.0.log(format_args!("commit of {} effects", facts.len()));
            for fact in &facts {
                self.0.check(|state, _| state.model.apply(fact));
            }
        };
        self.call("commit", self.0.memory().commit(inner), record).await
    }

    async fn rollback(&self, transaction: SimulatedTransaction) -> Result<(), StateError> {
        self.0.count("rolled back transaction");
        let inner = transaction.0.inner;
        self.call("rollback", self.0.memory().rollback(inner), |()| {}).await
    }

    async fn savepoint(&self, connection: &mut SimulatedConnection, depth: u32) -> Result<(), StateError> {
        connection
            .statement("savepoint", async |connection| {
                self.0.memory().savepoint(&mut connection.inner, depth).await?;
                connection.savepoints.push((depth, connection.facts.len()));
                Ok(())
            })
            .await
    }

    async fn release_savepoint(&self, connection: &mut SimulatedConnection, depth: u32) -> Result<(), StateError> {
        connection
            .statement("release savepoint", async |connection| {
                self.0.memory().release_savepoint(&mut connection.inner, depth).await?;
                connection.savepoints.retain(|(set, _)| *set < depth);
                Ok(())
            })
            .await
    }

    async fn rollback_to_savepoint(&self, connection: &mut SimulatedConnection, depth: u32) -> Result<(), StateError> {
        let Some(place) = connection.savepoints.iter().position(|(set, _)| *set == depth) else {
            return Err(aborted());
        };
        let world = &self.0;
        world.before("rollback to savepoint").await?;
        world
            .memory()
            .rollback_to_savepoint(&mut connection.inner, depth)
            .await?;
        world.count("savepoint rolled back");
        let (_, facts) = connection.savepoints[place];
        connection.facts.truncate(facts);
        connection.savepoints.truncate(place);
        if connection.failed.is_some_and(|savepoints| savepoints > place) {
            world.count("failed statement undone by a savepoint");
            connection.failed = None;
        }
        Ok(())
    }

    async fn create_chains(
        &self,
        within: Option<&mut SimulatedConnection>,
        chains: &[NewChain],
    ) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
        let mut given = chains.to_vec();
        if self.0.is_broken(Breakage::ForgetsKeys) {
            given.iter_mut().for_each(|chain| chain.deduplication = None);
        }
        let leaks = within.is_some() && self.0.is_broken(Breakage::AnnouncesEarly);
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().create_chains(within, &given).await;
        let created = self
            .call_within("create", within, run, |created| {
                let pairs = created.iter().flat_map(|created| chains.iter().zip(created));
                pairs
                    .map(|(new, created)| Fact::Created {
                        new: Box::new(new.clone()),
                        created: created.clone(),
                        at: self.0.now(),
                    })
                    .collect()
            })
            .await?;
        if leaks && let Ok(created) = &created {
            for chain in created.iter().filter(|chain| !chain.deduplicated) {
                let notice = queuert::adapter::Notice::ChainEnded(chain.id);
                self.0.check(|state, _| state.model.announced(&notice));
            }
        }
        Ok(created)
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        self.call("claim", self.0.memory().claim_jobs(claim), |claimed| {
            if !claimed.jobs.is_empty() {
                self.did(Fact::Claimed {
                    claim: Box::new(claim.clone()),
                    jobs: claimed.jobs.clone(),
                    at: self.0.now(),
                });
            }
        })
        .await
    }

    async fn renew_leases(&self, renewals: &[RenewLease]) -> Result<Vec<Renewal>, StateError> {
        self.call("renew", self.0.memory().renew_leases(renewals), |results| {
            for (renewal, result) in renewals.iter().zip(results) {
                match result {
                    Renewal::Renewed(until) => self.did(Fact::Renewed {
                        job: renewal.job,
                        fence: renewal.fence,
                        until: *until,
                    }),
                    Renewal::Busy => self.0.count("renewal of a locked job"),
                    Renewal::Lost(_) => self.0.count("renewal of a lost lease"),
                }
            }
        })
        .await
    }

    async fn settle_jobs(
        &self,
        within: Option<&mut SimulatedConnection>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().settle_jobs(within, settlements).await;
        self.call_within("settle", within, run, |settled| {
            let at = self.0.now();
            let mut facts = Vec::new();
            for (settlement, settled) in settlements.iter().zip(settled) {
                match settled {
                    Settled::Applied(applied) => {
                        let mut applied = applied.clone();
                        if self.0.is_broken(Breakage::ForgetsUnblocked) {
                            applied.unblocked.pop();
                        }
                        let fact = Fact::Settled {
                            settlement: Box::new(settlement.clone()),
                            applied,
                            at,
                        };
                        if self.0.is_broken(Breakage::SettlesTwice) {
                            facts.push(fact.clone());
                        }
                        facts.push(fact);
                    }
                    Settled::Repeated(_) => self.0.count("repeated settlement"),
                    Settled::Lost(_) => self.0.count("stale settlement refused"),
                    Settled::Refused(_) => self.0.count("refused continuation"),
                    Settled::Busy => self.0.count("settlement of a locked chain"),
                }
            }
            facts
        })
        .await
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        if self.0.is_broken(Breakage::NeverReaps) {
            return Ok(Vec::new());
        }
        self.call("reap", self.0.memory().reap_leases(reap), |jobs| {
            if !jobs.is_empty() {
                self.did(Fact::Reaped {
                    reap: Box::new(reap.clone()),
                    jobs: jobs.clone(),
                    at: self.0.now(),
                });
            }
        })
        .await
    }

    async fn hold_lease(
        &self,
        connection: &mut SimulatedConnection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        connection
            .statement("hold", async |connection| {
                let held = self.0.memory().hold_lease(&mut connection.inner, job, fence).await?;
                if held.is_ok() {
                    connection.did(Fact::Held { job, fence });
                }
                Ok(held)
            })
            .await
    }

    async fn lock_chain(
        &self,
        connection: &mut SimulatedConnection,
        chain: ChainId,
    ) -> Result<Option<JobRecord>, StateError> {
        connection
            .statement("lock", async |connection| {
                self.0.memory().lock_chain(&mut connection.inner, chain).await
            })
            .await
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut SimulatedConnection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().trigger_jobs(within, jobs).await;
        self.call_within("trigger", within, run, |result| {
            let jobs = result.iter().cloned();
            let at = self.0.now();
            jobs.map(|jobs| Fact::Triggered { jobs, at }).collect()
        })
        .await
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut SimulatedConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().cancel_chains(within, chains).await;
        self.call_within("cancel", within, run, |result| {
            let chains = result.iter().cloned();
            chains.map(|chains| Fact::Cancelled { chains }).collect()
        })
        .await
    }

    async fn retry_chains(
        &self,
        within: Option<&mut SimulatedConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().retry_chains(within, chains).await;
        self.call_within("retry", within, run, |result| {
            let jobs = result.iter().cloned();
            let at = self.0.now();
            jobs.map(|jobs| Fact::Retried { jobs, at }).collect()
        })
        .await
    }

    async fn delete_chains(
        &self,
        within: Option<&mut SimulatedConnection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().delete_chains(within, delete).await;
        self.call_within("delete", within, run, |result| {
            let chains = result.iter().cloned();
            chains.map(|chains| Fact::Deleted { chains }).collect()
        })
        .await
    }

    async fn get_jobs(
        &self,
        within: Option<&mut SimulatedConnection>,
        jobs: &[JobId],
    ) -> Result<Vec<JobRecord>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().get_jobs(within, jobs).await;
        self.call_within("get jobs", within, run, |_| Vec::new()).await
    }

    async fn get_chains(
        &self,
        within: Option<&mut SimulatedConnection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().get_chains(within, chains).await;
        self.call_within("get chains", within, run, |_| Vec::new()).await
    }

    async fn list_jobs(
        &self,
        within: Option<&mut SimulatedConnection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().list_jobs(within, query).await;
        self.call_within("list jobs", within, run, |_| Vec::new()).await
    }

    async fn list_chains(
        &self,
        within: Option<&mut SimulatedConnection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().list_chains(within, query).await;
        self.call_within("list chains", within, run, |_| Vec::new()).await
    }

    async fn list_blockers(
        &self,
        within: Option<&mut SimulatedConnection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().list_blockers(within, job).await;
        self.call_within("list blockers", within, run, |_| Vec::new()).await
    }
}

/// A fact as a line of the history.
fn describe(world: &World, fact: &Fact) -> String {
    let history = &mut world.lock().history;
    match fact {
        Fact::Created { new, created, .. } => {
            let blockers: Vec<_> = new.job.blockers.iter().map(|chain| history.chain(*chain)).collect();
            format!(
                "created {} {} {} after [{}] key {:?}{}",
                new.job.type_name,
                history.chain(created.id),
                created.status,
                blockers.join(" "),
                new.deduplication.as_ref().map(|wanted| &wanted.key),
                if created.deduplicated { " (was there)" } else { "" }
            )
        }
        Fact::Claimed { claim, jobs, .. } => {
            let jobs: Vec<_> = jobs.iter().map(|claimed| history.job(claimed.job.id)).collect();
            let worker = history.worker(&claim.worker);
            format!(
                "{worker} claimed {} under {}",
                jobs.join(" "),
                history.fence(claim.fence)
            )
        }
        Fact::Renewed { job, fence, .. } => format!("renewed {} under {}", history.job(*job), history.fence(*fence)),
        Fact::Held { job, fence } => format!("held {} under {}", history.job(*job), history.fence(*fence)),
        Fact::Settled {
            settlement, applied, ..
        } => {
            use queuert::adapter::{Authority, Outcome};
            let by = match &settlement.authority {
                Authority::Fence { fence, .. } => history.fence(*fence),
                Authority::Outside => "outside".to_owned(),
            };
            let how = match &settlement.outcome {
                Outcome::Finish { output } => format!("finish {output:?}"),
                Outcome::Continue { next } => format!("continue with {} {}", next.type_name, history.job(next.id)),
                other => format!("{other:?}"),
            };
            let unblocked: Vec<_> = applied.unblocked.iter().map(|one| history.job(one.job)).collect();
            format!(
                "settled {} under {by}: {how}; unblocked [{}]",
                history.job(settlement.job),
                unblocked.join(" ")
            )
        }
        Fact::Reaped { jobs, .. } => {
            let jobs: Vec<_> = jobs.iter().map(|reaped| history.job(reaped.job.id)).collect();
            format!("reaped {}", jobs.join(" "))
        }
        Fact::Triggered { jobs, .. } => {
            let jobs: Vec<_> = jobs.iter().map(|job| history.job(job.id)).collect();
            format!("triggered {}", jobs.join(" "))
        }
        Fact::Retried { jobs, .. } => {
            let jobs: Vec<_> = jobs.iter().map(|job| history.job(job.id)).collect();
            format!("retried {}", jobs.join(" "))
        }
        Fact::Cancelled { chains } => {
            let chains: Vec<_> = chains.iter().map(|one| history.chain(one.chain.id)).collect();
            format!("cancelled {}", chains.join(" "))
        }
        Fact::Deleted { chains } => {
            let chains: Vec<_> = chains.iter().map(|one| history.chain(one.chain.id)).collect();
            format!("deleted {}", chains.join(" "))
        }
    }
}
