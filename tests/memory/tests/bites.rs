//! The contract bites: a store with a known bug breaks the rules that are about it.
#![cfg(debug_assertions)]

use std::time::Duration;

use queuert::Timestamp;
use queuert::memory::{MemoryClock, MemoryState, Sabotage};
use queuert_conformance::{Capabilities, StateFixture, run, state};

struct Sabotaged(Sabotage);

impl StateFixture for Sabotaged {
    type State = MemoryState;

    async fn state(&self) -> MemoryState {
        let state = MemoryState::with_clock(MemoryClock::manual(Timestamp::from_micros(1_750_000_000_000_000)));
        state.sabotage(self.0);
        state
    }

    async fn elapse(&self, state: &MemoryState, time: Duration) {
        state.clock().advance(time);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().concurrent_writers().free_time()
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(20)
    }
}

#[test]
#[should_panic = "Lost(TakenByAnotherWorker)"]
fn a_store_without_fences_lets_a_stale_attempt_write() {
    let fixture = || Sabotaged(Sabotage::NoFencing);
    run(fixture, state::fencing::a_stale_attempt_of_the_same_worker_is_refused);
}

#[test]
#[should_panic = "exactly one of the two unblocks"]
fn a_store_that_races_forgets_to_unblock() {
    let fixture = || Sabotaged(Sabotage::UnblockRace);
    run(
        fixture,
        state::fan_in::two_blockers_in_overlapping_transactions_unblock_once,
    );
}
