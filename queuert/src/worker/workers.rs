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

    /// Stops several sets of workers as [`stop`](Self::stop) stops one. All of them are asked to stop before the call waits for
    /// the first, so that their grace periods run at the same time.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has asked all of the workers to stop; they go on doing so.
    pub async fn stop_all<'w>(sets: impl IntoIterator<Item = &'w Self>)
    where
        S: 'w,
    {
        let sets: Vec<&Self> = sets.into_iter().collect();
        for set in &sets {
            set.stop.cancel();
        }
        for set in sets {
            set.stop().await;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobStatus;
    use crate::memory::{Attempt, MemoryState};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Slow;
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Idle;

    #[derive(crate::JobTypes)]
    #[job(crate = crate)]
    enum Jobs {
        #[job(entry, output = ())]
        Slow(Slow),
        #[job(entry, output = ())]
        Idle(Idle),
    }

    #[tokio::test(start_paused = true)]
    async fn sets_that_are_stopped_together_have_their_grace_periods_at_the_same_time() {
        let client = Client::new(MemoryState::new());
        let idle = client
            .worker()
            .process(|job: Attempt<Idle>| async move { job.finish(()) });
        let idle = Arc::new(idle.start().await.unwrap());
        let other = Arc::clone(&idle);
        // Its attempt ends when the other set has stopped: it would be aborted if the sets were stopped one after the other.
        let slow = client.worker().process(move |job: Attempt<Slow>| {
            let other = Arc::clone(&other);
            async move {
                other.wait_for_health(|health| *health == Health::Stopped).await;
                job.finish(())
            }
        });
        let slow = slow.start().await.unwrap();
        let chain = client.start(Slow).await.unwrap();
        while client.get_chain_record(&chain).await.unwrap().unwrap().status != JobStatus::Running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Workers::stop_all([&slow, &*idle]).await;
        let ended = client.get_chain_record(&chain).await.unwrap().unwrap();
        assert_eq!(ended.status, JobStatus::Completed);
    }
}
