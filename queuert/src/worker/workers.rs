//! The handle to running workers.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::__task::{spawn, spawn_in};
use crate::adapter::StateAdapter;
use crate::client::Client;
use crate::error::{StateError, StateErrorKind};
use crate::event::Event;
use crate::event_hub::EventStream;
use crate::id::WorkerId;
use crate::worker::attempt::settler::settle_loop;
use crate::worker::context::{Runtime, panic_message};
use crate::worker::dispatch::claimer::claim_loop;
use crate::worker::dispatch::pool::crew_loop;
use crate::worker::health::{Backoff, Health};
use crate::worker::upkeep::listener::{listen_for_jobs, listen_for_lost_leases};
use crate::worker::upkeep::maintenance::maintain_loop;
use crate::worker::upkeep::queue_depth::sample_loop;
use crate::worker::upkeep::reaper::reap_loop;
use crate::worker::upkeep::renewer::renew_loop;

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
    pub(crate) fn spawn(runtime: Runtime<S>) -> Self {
        let runtime = Arc::new(runtime);
        let client = runtime.client.clone();
        let id = runtime.worker.clone();
        let stop = runtime.stop.clone();
        let health = runtime.health.subscribe();
        let supervisor = spawn(supervise(runtime)).abort_handle();
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

    /// How they are doing.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Waits until their health is something that `wanted` accepts.
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
    /// [`Shutdown`](super::AbortReason::Shutdown) and their jobs go back without a spent attempt. Returns when nothing
    /// runs any more, except for processors that block their threads, which nobody can end: their jobs go back too, and
    /// what they still write is refused. Calling it twice is harmless.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has asked the workers to stop; they go on doing so.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut health = self.health.clone();
        // An error means that the supervisor has gone, and everything with it.
        let _ = health.wait_for(|health| *health == Health::Stopped).await;
    }

    /// Ends everything at once, without a word to the store, as a killed process would: running attempts are dropped,
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

/// How long the loops may take to end, once no attempt is left: to announce what they have just committed.
const WIND_UP: Duration = Duration::from_secs(2);

/// Runs the loops, and ends them when the claimer has wound up. Aborting it aborts them all.
async fn supervise<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let hub = runtime.client.hub().clone();
    let worker = runtime.worker.clone();
    hub.emit_with(|| Event::WorkerStarted {
        worker: worker.clone(),
        concurrency: runtime.settings.concurrency,
    });
    let mut loops = JoinSet::new();
    start(&mut loops, &runtime, "settle loop", settle_loop);
    start(&mut loops, &runtime, "crew", crew_loop);
    start(&mut loops, &runtime, "renew loop", renew_loop);
    start(&mut loops, &runtime, "reap loop", reap_loop);
    start(&mut loops, &runtime, "maintenance loop", maintain_loop);
    start(&mut loops, &runtime, "sample loop", sample_loop);
    start(&mut loops, &runtime, "listener for jobs", listen_for_jobs);
    start(&mut loops, &runtime, "listener for leases", listen_for_lost_leases);
    let mut claimer = JoinSet::new();
    start(&mut claimer, &runtime, "claim loop", claim_loop);
    while claimer.join_next().await.is_some() {}
    runtime.quit.cancel();
    // A loop whose call the store does not answer is cut off: no attempt waits for it any more.
    let ended = async { while loops.join_next().await.is_some() {} };
    if tokio::time::timeout(WIND_UP, ended).await.is_err() {
        loops.shutdown().await;
    }
    hub.emit_with(|| Event::WorkerStopped { worker });
    runtime.health.set(Health::Stopped);
}

/// Starts a loop as a task of its own.
fn start<S, F>(
    loops: &mut JoinSet<()>,
    runtime: &Arc<Runtime<S>>,
    name: &'static str,
    body: impl Fn(Arc<Runtime<S>>) -> F + Send + 'static,
) where
    S: StateAdapter,
    F: Future<Output = ()> + Send + 'static,
{
    spawn_in(loops, keep_running(Arc::clone(runtime), name, body));
}

/// Runs a loop until it ends by itself, and begins it anew should it panic: only `stop` ends a worker.
async fn keep_running<S, F>(runtime: Arc<Runtime<S>>, name: &'static str, body: impl Fn(Arc<Runtime<S>>) -> F)
where
    S: StateAdapter,
    F: Future<Output = ()>,
{
    let mut backoff = Backoff::new(runtime.client.entropy());
    while let Err(panic) = AssertUnwindSafe(body(Arc::clone(&runtime))).catch_unwind().await {
        let message = format!("it panicked: {}", panic_message(&*panic));
        runtime
            .health
            .failed(name, &StateError::new(StateErrorKind::Transient, message));
        tokio::time::sleep(backoff.next_pause()).await;
        runtime.health.succeeded(name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::memory::{Attempt, MemoryState};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing;

    #[derive(crate::JobTypes)]
    #[job(crate = crate)]
    enum Jobs {
        #[job(entry, output = ())]
        Nothing(Nothing),
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_begun_anew_and_the_worker_says_so() {
        let client = Client::new(MemoryState::new());
        let mut events = client.events();
        let worker = client
            .worker()
            .process(|job: Attempt<Nothing>| async { job.finish(()) });
        let runtime = Arc::new(worker.build().unwrap());
        let begun = AtomicU32::new(0);
        keep_running(Arc::clone(&runtime), "loop", |_| async {
            assert!(begun.fetch_add(1, Ordering::SeqCst) == 2, "not yet");
        })
        .await;
        assert_eq!(begun.load(Ordering::SeqCst), 3);
        let mut degraded = 0;
        while let Some(event) = events.try_next() {
            degraded += u32::from(matches!(event, Event::WorkerDegraded { .. }));
        }
        assert_eq!(degraded, 2);
        assert_eq!(*runtime.health.subscribe().borrow(), Health::Running);
    }
}
