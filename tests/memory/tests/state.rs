//! The contract of the state adapters, kept by the one in memory.

use std::time::Duration;

use queuert::Timestamp;
use queuert::memory::{MemoryClock, MemoryConnection, MemoryState};
use queuert_conformance::{Capabilities, StateFixture, state_conformance};

struct Memory;

/// Some moment in 2025: rules do not depend on it.
const START: Timestamp = Timestamp::from_micros(1_750_000_000_000_000);

impl StateFixture for Memory {
    type State = MemoryState;

    async fn state(&self) -> MemoryState {
        MemoryState::with_clock(MemoryClock::manual(START))
    }

    async fn elapse(&self, state: &MemoryState, time: Duration) {
        state.clock().advance(time);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().concurrent_writers().free_time().markers()
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn write_marker(&self, connection: &mut MemoryConnection, marker: &str) {
        connection.put(marker, true).await.expect("a marker can be written");
    }

    async fn read_marker(&self, state: &MemoryState, marker: &str) -> bool {
        state.get::<bool>(marker).expect("a marker can be read").is_some()
    }
}

state_conformance!(Memory);
