//! The whole conformance kit: the rules of state adapters, and how client and workers behave.

use std::sync::Arc;
use std::time::Duration;

use adapter::{MapConnection, MapState};
use queuert::Timestamp;
use queuert::adapter::{AGEING_STEP, NotifyAdapter};
use queuert::memory::{InProcessNotify, MemoryClock};
use queuert_conformance::{Capabilities, PairFixture, StateFixture};

/// A store on the wall clock.
struct Map;

impl StateFixture for Map {
    type State = MapState;

    async fn state(&self) -> MapState {
        adapter::open()
    }

    async fn elapse(&self, _: &MapState, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().markers()
    }

    async fn write_marker(&self, connection: &mut MapConnection, marker: &str) {
        connection.put(marker, "");
    }

    async fn read_marker(&self, state: &MapState, marker: &str) -> bool {
        state.records().entry(marker).is_some()
    }
}

impl PairFixture for Map {
    async fn notify(&self) -> Arc<dyn NotifyAdapter> {
        Arc::new(InProcessNotify::new())
    }
}

/// A store on a clock that the cases move.
struct Timed(MemoryClock);

impl StateFixture for Timed {
    type State = MapState;

    async fn state(&self) -> MapState {
        adapter::with_clock(self.0.clone(), AGEING_STEP)
    }

    async fn elapse(&self, _: &MapState, time: Duration) {
        self.0.advance(time);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().free_time().markers()
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn write_marker(&self, connection: &mut MapConnection, marker: &str) {
        connection.put(marker, "");
    }

    async fn read_marker(&self, state: &MapState, marker: &str) -> bool {
        state.records().entry(marker).is_some()
    }
}

mod state {
    use super::*;

    queuert_conformance::state_conformance!(Timed(MemoryClock::manual(Timestamp::from_micros(
        1_750_000_000_000_000
    ))));
}

mod client {
    use super::*;

    queuert_conformance::client_behaviour!(Map);
}

mod worker {
    use super::*;

    queuert_conformance::worker_behaviour!(Map);
}
