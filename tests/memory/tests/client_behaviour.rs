//! What the client promises, on the memory store with and without hints.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::NotifyAdapter;
use queuert::memory::{InProcessNotify, MemoryConnection, MemoryState, NoNotify};
use queuert_conformance::{Capabilities, PairFixture, StateFixture, client_behaviour};

/// One type for both modules, so that the cases are compiled once.
struct Memory(Arc<dyn NotifyAdapter>);

impl StateFixture for Memory {
    type State = MemoryState;

    async fn state(&self) -> MemoryState {
        MemoryState::new()
    }

    async fn elapse(&self, _: &MemoryState, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().concurrent_writers().markers()
    }

    async fn write_marker(&self, connection: &mut MemoryConnection, marker: &str) {
        connection.put(marker, true).await.expect("the marker can be written");
    }

    async fn read_marker(&self, state: &MemoryState, marker: &str) -> bool {
        state.get(marker).expect("the marker can be read").unwrap_or(false)
    }
}

impl PairFixture for Memory {
    async fn notify(&self) -> Arc<dyn NotifyAdapter> {
        Arc::clone(&self.0)
    }
}

mod in_process_notify {
    use super::*;

    client_behaviour!(Memory(Arc::new(InProcessNotify::new())));
}

mod no_notify {
    use super::*;

    client_behaviour!(Memory(Arc::new(NoNotify)));
}
