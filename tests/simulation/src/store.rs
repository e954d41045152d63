//! The store of the simulation: the memory store, with calls that are slow, fail, or succeed without saying so. It
//! tells the model what was committed at the very moment of the commit.

use queuert::adapter::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, Pauses, ReapLeases,
    ReapedJob, Refusal, RenewLease, Renewal, Settled, Settlement, StateAdapter, StoppedChain,
};
use queuert::memory::MemoryConnection;
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, Pause, StateError, Timestamp, TypeName};

use crate::connection::{SimulatedConnection, SimulatedTransaction, aborted};
use crate::model::Fact;
use crate::run::Breakage;
use crate::world::World;

/// The state adapter of the simulation.
#[derive(Clone, Debug)]
pub struct Simulated(World);

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
        let text = fact.describe(&mut self.0.lock().history);
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

    // What is left: upkeep and the depth of queues, which the model does not know.
    queuert::forward_state! {
        self => self.0.memory();
        except begin, commit, rollback, savepoint, release_savepoint, rollback_to_savepoint, has_ended, catch_up, shield, unshield,
            undo_shielded, create_chains, claim_jobs, claimed_jobs, renew_leases, settle_jobs, settle_in, reap_leases,
            hold_lease, lock_chain, trigger_jobs, cancel_chains, retry_chains, delete_chains, get_jobs, get_chains,
            list_jobs, list_chains, list_blockers, list_pauses, put_pause, delete_pause, watermark
    }

    async fn begin(&self) -> Result<SimulatedTransaction, StateError> {
        let inner = self.call("begin", self.0.memory().begin(), |_| {}).await?;
        Ok(SimulatedTransaction::new(self.0.clone(), inner))
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

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        self.call("claimed", self.0.memory().claimed_jobs(fence), |_| {}).await
    }

    async fn renew_leases(
        &self,
        within: Option<&mut SimulatedConnection>,
        renewals: &[RenewLease],
    ) -> Result<Vec<Renewal>, StateError> {
        if let Some(connection) = within {
            return connection
                .statement("renew", async |connection| {
                    let inner = Some(&mut *connection.inner);
                    let results = self.0.memory().renew_leases(inner, renewals).await?;
                    for (renewal, result) in renewals.iter().zip(&results) {
                        if let Renewal::Renewed(until) = result {
                            self.0.count("renewal in a transaction");
                            connection.did(Fact::Renewed {
                                job: renewal.job,
                                fence: renewal.fence,
                                until: *until,
                            });
                        }
                    }
                    Ok(results)
                })
                .await;
        }
        self.call("renew", self.0.memory().renew_leases(None, renewals), |results| {
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

    async fn list_pauses(&self, within: Option<&mut SimulatedConnection>) -> Result<Pauses, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().list_pauses(within).await;
        self.call_within("list pauses", within, run, |_| Vec::new()).await
    }

    async fn put_pause(&self, within: Option<&mut SimulatedConnection>, pause: &Pause) -> Result<(), StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().put_pause(within, pause).await;
        self.call_within("put pause", within, run, |()| Vec::new()).await
    }

    async fn delete_pause(
        &self,
        within: Option<&mut SimulatedConnection>,
        type_name: &TypeName,
    ) -> Result<bool, StateError> {
        let run = async |within: Option<&mut MemoryConnection>| self.0.memory().delete_pause(within, type_name).await;
        self.call_within("delete pause", within, run, |_| Vec::new()).await
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        self.call("watermark", self.0.memory().watermark(), |_| {}).await
    }
}
