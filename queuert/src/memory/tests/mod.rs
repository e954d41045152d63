//! What only this adapter can be asked: its inside. The rules of the contract are tested by the conformance kit.

mod deduplication;
mod fan_in;
mod locks;
mod operate;
mod queue;
mod random;
#[cfg(debug_assertions)]
mod sabotage;
mod transactions;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use uuid::Uuid;

use super::{MemoryClock, MemoryState};
use crate::adapter::*;
use crate::error::StateError;
use crate::id::{ChainId, Fence, JobId, WorkerId};
use crate::job::{JobRecord, JobStatus};
use crate::payload::Payload;
use crate::settings::RetryPolicy;
use crate::time::Timestamp;

const LEASE: Duration = Duration::from_secs(30);

fn state() -> MemoryState {
    MemoryState::with_clock(MemoryClock::manual(Timestamp::from_micros(1_000_000_000_000_000)))
}

fn job_id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

fn chain_id(number: u128) -> ChainId {
    job_id(number).as_chain()
}

fn fence(number: u128) -> Fence {
    Fence::from_uuid(Uuid::from_u128(number))
}

fn new_job(number: u128, type_name: &'static str, blockers: &[u128]) -> NewJob {
    let mut job = NewJob::new(job_id(number), type_name, Payload::from_text("{}"));
    job.blockers = blockers.iter().copied().map(chain_id).collect();
    job
}

fn new_chain(number: u128) -> NewChain {
    NewChain::new(new_job(number, "task", &[]))
}

fn dependant(number: u128, blockers: &[u128]) -> NewChain {
    NewChain::new(new_job(number, "dependant", blockers))
}

async fn start(state: &MemoryState, chains: &[NewChain]) -> Vec<CreatedChain> {
    state.create_chains(None, chains).await.unwrap().unwrap()
}

async fn claim(state: &MemoryState, type_name: &'static str, limit: usize, fence_number: u128) -> Claimed {
    claim_types(state, &[type_name], limit, fence_number).await
}

async fn claim_types(state: &MemoryState, types: &[&'static str], limit: usize, fence_number: u128) -> Claimed {
    let types = types.iter().map(|name| ClaimType {
        name: (*name).into(),
        lease: LEASE,
    });
    let claim = ClaimJobs::new(types.collect(), limit, WorkerId::new("w"), fence(fence_number));
    state.claim_jobs(&claim).await.unwrap()
}

fn claimed_ids(claimed: &Claimed) -> Vec<JobId> {
    claimed.jobs.iter().map(|claimed| claimed.job.id).collect()
}

fn settlement(number: u128, fence_number: u128, outcome: Outcome) -> Settlement {
    Settlement {
        job: job_id(number),
        authority: Authority::Fence {
            fence: fence(fence_number),
            worker: WorkerId::new("w"),
        },
        outcome,
    }
}

fn finish(number: u128, fence_number: u128) -> Settlement {
    let output = Payload::from_text("null");
    settlement(number, fence_number, Outcome::Finish { output })
}

fn continue_with(number: u128, fence_number: u128, next: NewJob) -> Settlement {
    let next = Box::new(next);
    settlement(number, fence_number, Outcome::Continue { next })
}

async fn settle(state: &MemoryState, settlements: &[Settlement]) -> Vec<Settled> {
    state.settle_jobs(None, settlements).await.unwrap()
}

async fn job(state: &MemoryState, number: u128) -> JobRecord {
    state.get_jobs(None, &[job_id(number)]).await.unwrap().remove(0)
}

async fn status(state: &MemoryState, number: u128) -> JobStatus {
    job(state, number).await.status
}

fn unblocked(settled: &Settled) -> Vec<JobId> {
    match settled {
        Settled::Applied(applied) => applied.unblocked.iter().map(|unblocked| unblocked.job).collect(),
        other => panic!("not applied: {other:?}"),
    }
}

/// Polls once, which is all that a verb needs unless it waits for a lock.
fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Asserts that a verb waits, and drops it.
fn assert_waits<T>(future: impl Future<Output = Result<T, StateError>>) {
    assert!(poll(pin!(future)).is_pending(), "the verb should wait for a lock");
}
