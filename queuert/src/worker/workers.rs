//! The handle to running workers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::__task::spawn;
use crate::adapter::StateAdapter;
use crate::client::Client;
use crate::error::Error;
use crate::event_hub::EventStream;
use crate::id::WorkerId;
use crate::worker::context::Context;
use crate::worker::dispatch::parts::Dispatch;
use crate::worker::health::Health;
use crate::worker::supervisor::supervise;

/// Running workers. They go on until [`stop`](Self::stop); dropping the handle detaches it from them.
#[must_use = "keep the handle to stop the workers gracefully"]
pub struct Workers<S: StateAdapter> {
    client: Client<S>,
    id: WorkerId,
    stop: CancellationToken,
    health: watch::Receiver<Health>,
    supervisor: AbortHandle,
}

impl<S: StateAdapter> Workers<S> {
    pub(crate) fn spawn(context: Context<S>) -> Self {
        let client = context.client.clone();
        let id = context.worker.clone();
        let stop = context.stop.clone();
        let health = context.health.subscribe();
        let supervisor = spawn(supervise(Arc::new(Dispatch::new(context)))).abort_handle();
        Self {
            client,
            id,
            stop,
            health,
            supervisor,
        }
    }

    /// The id under which these workers hold leases: their name and a part that is new at every start.
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// Whether the store answers them, and whether they stop.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Waits until `wanted` accepts their health.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn wait_for_health(&self, wanted: impl FnMut(&Health) -> bool) -> Health {
        let mut health = self.health.clone();
        match health.wait_for(wanted).await {
            Ok(health) => health.clone(),
            Err(_) => Health::Stopped,
        }
    }

    /// The events of these workers and their client, from now on.
    pub fn events(&self) -> EventStream {
        self.client.events()
    }

    /// Stops gracefully: no new claim, running attempts have their grace period, then they are aborted with the reason
    /// [`Shutdown`](crate::AbortReason::Shutdown) and their jobs go back without a spent attempt. Returns when nothing
    /// runs any more, except for processors that block their threads, which cannot be ended: their jobs go back too, and
    /// their later writes are refused. Calling it twice is harmless.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has asked the workers to stop; they go on doing so.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut health = self.health.clone();
        // An error means that the supervisor is gone, and all services with it.
        let _ = health.wait_for(|health| *health == Health::Stopped).await;
    }

    /// Ends everything at once, without another call to the store, as a killed process would: running attempts are dropped,
    /// and their jobs come back when their leases expire.
    pub fn abort(&self) {
        self.supervisor.abort();
    }

    pub(crate) fn stop_on_drop(&self) -> DropGuard {
        self.stop.clone().drop_guard()
    }
}

impl<S: StateAdapter> fmt::Debug for Workers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("id", &self.id)
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

/// Refuses a place without a tokio runtime or without timers: workers would panic one after the other, out of sight.
pub(crate) fn check_runtime() -> Result<(), Error> {
    let problem = if tokio::runtime::Handle::try_current().is_err() {
        "workers need a tokio runtime: start them in `#[tokio::main]`, `#[tokio::test]` or `runtime.block_on(..)`"
    } else if std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_err() {
        "the tokio runtime has no timers: add `.enable_all()` to its builder"
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "runtime",
        problem: problem.into(),
    })
}
