//! How client and workers behave, on any pair of a state and a notify adapter.
//!
//! The shipping client and worker run here, in real time, with short leases and delays. A case waits for conditions,
//! never for time to pass in the hope that something has happened.

pub mod client;
pub mod worker;

use std::future::Future;
use std::sync::Arc;

use queuert::Client;
use queuert::adapter::NotifyAdapter;

use crate::fixture::StateFixture;

/// A state adapter together with a notify adapter.
pub trait PairFixture: StateFixture {
    /// The notify adapter for the clients of one case; they share it.
    fn notify(&self) -> impl Future<Output = Arc<dyn NotifyAdapter>> + Send;

    /// Whether notices arrive at all. Default: yes. Without, the cases about wake-ups say that they were left out.
    fn notifies(&self) -> bool {
        true
    }

    /// A client on a new, empty store.
    fn client(&self) -> impl Future<Output = Client<Self::State>> + Send {
        async {
            let state = self.state().await;
            Client::builder(state).notify(self.notify().await).build()
        }
    }
}
