//! What each committed fact changes, and what would have made it impossible.

use std::collections::BTreeSet;

use queuert::adapter::{
    AGEING_STEP, ClaimJobs, ClaimedJob, CreatedChain, NewChain, ReapLeases, ReapedJob, StoppedChain, rank,
};
use queuert::{ChainId, Fence, JobId, JobRecord, JobStatus, Timestamp};

use super::{Credit, Fact, JobState, Model};
use crate::invariants::{Checked, broken, ensure};

impl Model {
    /// Takes in a committed fact.
    ///
    /// # Errors
    ///
    /// When it breaks a rule.
    pub fn apply(&mut self, fact: &Fact) -> Checked {
        match fact {
            Fact::Created { new, created, at } => self.create(new, created, *at),
            Fact::Claimed { claim, jobs, at } => self.claim(claim, jobs, *at),
            Fact::Renewed { job, fence, until } => {
                self.running_under(*job, *fence, "renewed")?.lease_until = *until;
                Ok(())
            }
            Fact::Held { job, fence } => self.running_under(*job, *fence, "held until the commit").map(drop),
            Fact::Settled {
                settlement,
                applied,
                at,
            } => self.settle(settlement, applied, *at),
            Fact::Reaped { reap, jobs, at } => jobs.iter().try_for_each(|job| self.reap(reap, job, *at)),
            Fact::Triggered { jobs, at } => jobs.iter().try_for_each(|job| self.trigger(job, *at)),
            Fact::Cancelled { chains } => chains.iter().try_for_each(|chain| self.cancel(chain)),
            Fact::Retried { jobs, at } => jobs.iter().try_for_each(|job| self.retry(job, *at)),
            Fact::Deleted { chains } => self.delete(chains),
        }
    }

    fn create(&mut self, new: &NewChain, created: &CreatedChain, at: Timestamp) -> Checked {
        let job = &new.job;
        if created.deduplicated {
            let same = new.deduplication.as_ref().is_some_and(|wanted| {
                !wanted.except.contains(&created.id)
                    && self.jobs.get(&created.id.first_job()).is_none_or(|first| {
                        first.type_name == job.type_name && first.key.as_deref() == Some(wanted.key.as_str())
                    })
            });
            ensure!(same, Deduplication, "{} is no duplicate of {}", created.id, job.id);
            ensure!(self.knows(created.id), Deduplication, "{} never existed", created.id);
            return Ok(());
        }
        ensure!(
            !self.jobs.contains_key(&job.id),
            Successor,
            "job {} was created twice",
            job.id
        );
        if let Some(wanted) = &new.deduplication {
            let since = wanted.scope.ended_since(at);
            let mut others = self.open_with_key(&job.type_name, &wanted.key);
            let young = self
                .jobs
                .values()
                .filter(|other| other.index == 0 && other.type_name == job.type_name)
                .filter(|other| other.key.as_deref() == Some(wanted.key.as_str()))
                .filter(|other| since.is_some_and(|since| other.created_at >= since))
                .map(|other| other.chain);
            others.extend(young);
            others.retain(|chain| !wanted.except.contains(chain));
            ensure!(
                others.is_empty(),
                Deduplication,
                "chain {} was started although {others:?} has the key {:?}",
                job.id,
                wanted.key
            );
        }
        let mut state = self.new_job(job, job.id.as_chain(), 0, at);
        state.key = new.deduplication.as_ref().map(|wanted| wanted.key.clone());
        self.created(job.id, state, created.status)?;
        self.chains.insert(job.id.as_chain(), vec![job.id]);
        self.allow(Credit::ChainCreated(job.id.as_chain()));
        Ok(())
    }

    /// Adds a job whose chain is dealt with by the caller.
    pub(super) fn created(&mut self, id: JobId, state: JobState, status: JobStatus) -> Checked {
        ensure!(
            state.status == status,
            FanIn,
            "job {id} was created {status} but its blockers say {}",
            state.status
        );
        self.allow(Credit::JobCreated(id));
        match status {
            JobStatus::Blocked => self.allow(Credit::JobBlocked(id)),
            JobStatus::Running => {}
            _ => self.allow_jobs(&state.type_name),
        }
        self.known.insert(id);
        self.jobs.insert(id, state);
        Ok(())
    }

    fn claim(&mut self, claim: &ClaimJobs, jobs: &[ClaimedJob], at: Timestamp) -> Checked {
        ensure!(
            !self.ledger.stopped.contains(&claim.worker),
            Stop,
            "{} claims after it has stopped",
            claim.worker
        );
        ensure!(jobs.len() <= claim.limit, Claim, "more jobs than asked for");
        let ranks: Vec<_> = jobs
            .iter()
            .map(|ClaimedJob { job, .. }| {
                let place = self.jobs.get(&job.id).and_then(|state| state.place);
                let place = place.unwrap_or(job.scheduled_at);
                (rank(place, job.priority, AGEING_STEP), job.id)
            })
            .collect();
        ensure!(ranks.is_sorted(), Claim, "claimed out of order: {ranks:?}");
        for ClaimedJob { job, blockers } in jobs {
            let id = job.id;
            let Some(state) = self.jobs.get(&id) else {
                return broken!(Claim, "job {id} was claimed but never committed");
            };
            let open: Vec<_> = state
                .blockers
                .iter()
                .filter(|chain| !self.is_completed(**chain))
                .collect();
            ensure!(
                open.is_empty(),
                FanIn,
                "job {id} was claimed while it waits for {open:?}"
            );
            for (chain, record) in state.blockers.iter().zip(blockers) {
                let output = self.latest(*chain).and_then(|(_, job)| job.output.clone());
                ensure!(
                    record.id == *chain && record.output == output,
                    FanIn,
                    "job {id} was given the output {:?} of {}, not {output:?} of {chain}",
                    record.output,
                    record.id
                );
            }
            ensure!(
                state.blockers.len() == blockers.len(),
                FanIn,
                "job {id} was given the outputs of {} blockers, not {}",
                blockers.len(),
                state.blockers.len()
            );
            ensure!(
                state.status == JobStatus::Pending,
                Claim,
                "job {id} was claimed while {}",
                state.status
            );
            ensure!(
                state.scheduled_at <= at,
                Claim,
                "job {id} was claimed at {at}, before {}",
                state.scheduled_at
            );
            ensure!(
                state.scheduled_at == job.scheduled_at,
                Claim,
                "job {id} was scheduled for {}, not {}",
                job.scheduled_at,
                state.scheduled_at
            );
            let Some(lease) = job.lease.as_ref().filter(|lease| lease.fence == claim.fence) else {
                return broken!(Claim, "job {id} runs without the lease of its claim");
            };
            ensure!(
                lease.until > at,
                Claim,
                "the lease of job {id} had expired when it was given"
            );
            ensure!(
                !state.fences.contains(&lease.fence),
                Fence,
                "job {id} was claimed twice under one fence"
            );
            let expected = (state.attempt + 1, state.claims + 1);
            ensure!(
                (job.attempt, job.claims) == expected,
                Failure,
                "job {id} counts {} attempts and {} claims, not {expected:?}",
                job.attempt,
                job.claims
            );
            let until = lease.until;
            self.allow(Credit::AttemptStarted(id));
            if let Some(state) = self.jobs.get_mut(&id) {
                state.status = JobStatus::Running;
                state.attempt += 1;
                state.claims += 1;
                state.fence = Some(claim.fence);
                state.fences.insert(claim.fence);
                state.lease_until = until;
            }
        }
        Ok(())
    }

    pub(super) fn running_under(&mut self, job: JobId, fence: Fence, what: &str) -> Checked<&mut JobState> {
        let Some(state) = self.jobs.get_mut(&job) else {
            return broken!(Fence, "job {job} does not exist and was {what}");
        };
        if state.fence != Some(fence) {
            return broken!(
                Fence,
                "job {job} is {} under {:?} and was {what} under the stale {fence:?}",
                state.status,
                state.fence
            );
        }
        Ok(state)
    }

    fn reap(&mut self, reap: &ReapLeases, reaped: &ReapedJob, at: Timestamp) -> Checked {
        let id = reaped.job.id;
        ensure!(
            !reap.except.contains(&id),
            Reap,
            "a worker reaped its own attempt of {id}"
        );
        let Some(state) = self.jobs.get_mut(&id) else {
            return broken!(Reap, "job {id} does not exist and was reaped");
        };
        ensure!(
            state.status == JobStatus::Running && state.lease_until <= at,
            Reap,
            "job {id} was reaped at {at} while {} with a lease until {}",
            state.status,
            state.lease_until
        );
        let Some(of_type) = reap.types.iter().find(|reaped| reaped.name == state.type_name) else {
            return broken!(Reap, "job {id} was reaped by a worker for other types");
        };
        let most = state.max_attempts.or(Some(of_type.retry.max_attempts));
        let dead = most.is_some_and(|most| state.attempt >= most);
        let status = if dead { JobStatus::Dead } else { JobStatus::Pending };
        let error = reaped.job.last_error.as_ref().map(|error| error.message.clone());
        ensure!(
            reaped.job.status == status && reaped.job.attempt == state.attempt && error.is_some(),
            Failure,
            "the expiry of job {id} was not counted: {:?}",
            reaped.job
        );
        state.status = status;
        state.fence = None;
        state.error = error;
        if !dead {
            let last_sign_of_life = state.lease_until.saturating_sub(of_type.lease);
            let delay = of_type.retry.delay_after(state.attempt);
            let due = |share: f64| last_sign_of_life.saturating_add(delay.mul_f64(share)).max(at);
            let spread = of_type.retry.jitter + 1e-6;
            let (earliest, latest) = (due(1.0 - spread), due(1.0 + spread));
            let scheduled_at = reaped.job.scheduled_at;
            ensure!(
                earliest <= scheduled_at && scheduled_at <= latest,
                Failure,
                "attempt {} of job {id} was last heard of at {last_sign_of_life} and is due at {scheduled_at}, which is not \
                 {delay:?} later",
                state.attempt
            );
            state.place.get_or_insert(state.scheduled_at);
            state.scheduled_at = scheduled_at;
        }
        let (chain, type_name) = (state.chain, state.type_name.clone());
        self.allow(Credit::JobReaped(id));
        self.allow(Credit::LeaseLostNotice(id));
        match dead {
            true => self.died(id, chain),
            false => self.allow_jobs(&type_name),
        }
        Ok(())
    }

    pub(super) fn died(&mut self, job: JobId, chain: ChainId) {
        self.allow(Credit::JobDead(job));
        self.allow(Credit::ChainDead(chain));
        self.allow(Credit::ChainEndedNotice(chain));
    }

    fn trigger(&mut self, job: &JobRecord, at: Timestamp) -> Checked {
        let Some(state) = self
            .jobs
            .get_mut(&job.id)
            .filter(|job| job.status == JobStatus::Pending)
        else {
            return broken!(Claim, "job {} was triggered but is not pending", job.id);
        };
        state.scheduled_at = state.scheduled_at.min(at);
        let type_name = state.type_name.clone();
        self.allow(Credit::JobTriggered(job.id));
        self.allow_jobs(&type_name);
        Ok(())
    }

    fn cancel(&mut self, stopped: &StoppedChain) -> Checked {
        let chain = stopped.chain.id;
        let Some((id, job)) = self.latest(chain).filter(|(_, job)| job.status.is_open()) else {
            return broken!(Successor, "chain {chain} was cancelled but is not open");
        };
        let running = job.fence.is_some();
        ensure!(
            stopped.interrupted == running.then_some(id),
            Fence,
            "cancelling {chain} interrupted {:?}",
            stopped.interrupted
        );
        if running {
            self.allow(Credit::LeaseLostNotice(id));
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.status = JobStatus::Cancelled;
            job.fence = None;
        }
        self.allow(Credit::ChainCancelled(chain));
        self.allow(Credit::ChainEndedNotice(chain));
        Ok(())
    }

    fn retry(&mut self, record: &JobRecord, at: Timestamp) -> Checked {
        let id = record.id;
        let chain = record.chain_id;
        let Some((_, job)) = self
            .latest(chain)
            .filter(|(latest, job)| *latest == id && job.status.is_retryable())
        else {
            return broken!(Successor, "chain {chain} was retried but is not dead or cancelled");
        };
        let status = self.waiting_status(&job.blockers);
        let type_name = job.type_name.clone();
        ensure!(
            record.status == status && record.attempt == 0,
            FanIn,
            "job {id} was retried as {}, not {status}",
            record.status
        );
        let first = self.jobs.get(&chain.first_job());
        if let Some((name, key)) = first.and_then(|first| Some((first.type_name.clone(), first.key.clone()?))) {
            let open = self.open_with_key(&name, &key);
            ensure!(
                open.is_empty(),
                Deduplication,
                "chain {chain} was retried while {open:?} has its key"
            );
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.status = status;
            job.attempt = 0;
            job.scheduled_at = at;
            job.place = None;
        }
        self.allow(Credit::ChainRetried(chain));
        if status == JobStatus::Pending {
            self.allow_jobs(&type_name);
        }
        Ok(())
    }

    fn delete(&mut self, chains: &[StoppedChain]) -> Checked {
        let doomed: BTreeSet<_> = chains.iter().map(|stopped| stopped.chain.id).collect();
        for StoppedChain { chain, interrupted } in chains {
            let chain = chain.id;
            let waiting = self
                .dependants(chain)
                .find(|(_, job)| job.status != JobStatus::Completed && !doomed.contains(&job.chain));
            ensure!(
                waiting.is_none(),
                FanIn,
                "chain {chain} was deleted while {waiting:?} depends on it"
            );
            if let Some(job) = interrupted {
                self.allow(Credit::LeaseLostNotice(*job));
            }
            self.allow(Credit::ChainDeleted(chain));
            self.allow(Credit::ChainEndedNotice(chain));
        }
        for chain in doomed {
            for job in self.chains.remove(&chain).unwrap_or_default() {
                self.jobs.remove(&job);
            }
            for job in self.jobs.values_mut() {
                job.blockers.retain(|blocker| *blocker != chain);
            }
        }
        Ok(())
    }
}
