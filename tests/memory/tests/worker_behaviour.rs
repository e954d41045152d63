//! How workers behave on the memory store, with notices and without.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::NotifyAdapter;
use queuert::memory::{InProcessNotify, MemoryConnection, MemoryState, NoNotify};
use queuert_conformance::{Capabilities, PairFixture, StateFixture};

/// A store of its own, with notices or without.
struct Memory {
    notified: bool,
}

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
        connection.put(marker, true).await.expect("memory can be written");
    }

    async fn read_marker(&self, state: &MemoryState, marker: &str) -> bool {
        state.get(marker).expect("memory can be read").unwrap_or(false)
    }
}

impl PairFixture for Memory {
    async fn notify(&self) -> Arc<dyn NotifyAdapter> {
        if self.notified {
            Arc::new(InProcessNotify::new())
        } else {
            Arc::new(NoNotify)
        }
    }

    fn notifies(&self) -> bool {
        self.notified
    }
}

mod in_process_notify {
    use super::*;

    queuert_conformance::worker_behaviour!(Memory { notified: true });
}

mod no_notify {
    use super::*;

    queuert_conformance::worker_behaviour!(Memory { notified: false });
}
