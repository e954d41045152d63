//! Runs the services of one set of workers, starts a service again that panics, and ends all of them in order.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::__task::spawn_in;
use crate::adapter::{Backoff, BoxFuture, StateAdapter};
use crate::error::{StateError, StateErrorKind};
use crate::event::Event;
use crate::worker::attempt::settler::settle_loop;
use crate::worker::contained::panic_message;
use crate::worker::context::Context;
use crate::worker::dispatch::claimer::claim_loop;
use crate::worker::dispatch::parts::Dispatch;
use crate::worker::dispatch::pool::run_pool;
use crate::worker::health::Health;
use crate::worker::upkeep::listener::{listen_for_jobs, listen_for_lost_leases};
use crate::worker::upkeep::maintenance::maintain_loop;
use crate::worker::upkeep::queue_depth::queue_depth_loop;
use crate::worker::upkeep::reaper::reap_loop;
use crate::worker::upkeep::renewer::renew_loop;

/// How long the services may take to end once no attempt is left, for example to announce their last commit.
const LAST_WORK: Duration = Duration::from_secs(2);

/// A task of the set. It runs until it returns, and starts again if it panics.
struct Service {
    /// The name in events and in the worker's health.
    name: &'static str,
    run: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl Service {
    /// `part` is what the service may reach: the context, the attempts, or the dispatch of the set.
    fn new<P, F>(name: &'static str, part: &Arc<P>, run: impl Fn(Arc<P>) -> F + Send + Sync + 'static) -> Self
    where
        P: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let part = Arc::clone(part);
        Self {
            name,
            run: Box::new(move || Box::pin(run(Arc::clone(&part)))),
        }
    }
}

/// The services that run beside the claimer until the last attempt has ended. One more is one more line.
fn services<S: StateAdapter>(dispatch: &Arc<Dispatch<S>>) -> Vec<Service> {
    let attempts = &dispatch.attempts;
    let context = &attempts.context;
    vec![
        Service::new("settler", attempts, settle_loop),
        Service::new("pool", dispatch, run_pool),
        Service::new("renewer", attempts, renew_loop),
        Service::new("reaper", attempts, reap_loop),
        Service::new("maintenance", context, maintain_loop),
        Service::new("queue depth", context, queue_depth_loop),
        Service::new("listener for jobs", context, listen_for_jobs),
        Service::new("listener for leases", attempts, listen_for_lost_leases),
    ]
}

/// Runs the services, and ends them when the claimer has ended, which it does when no attempt is left. Aborting this future's
/// task aborts them all.
pub(crate) async fn supervise<S: StateAdapter>(dispatch: Arc<Dispatch<S>>) {
    let context = Arc::clone(&dispatch.attempts.context);
    let hub = context.client.hub();
    hub.emit_with(|| Event::WorkerStarted {
        worker: context.worker.clone(),
        concurrency: context.settings.concurrency,
    });
    let mut running = JoinSet::new();
    for service in services(&dispatch) {
        spawn_in(&mut running, keep_running(Arc::clone(&context), service));
    }
    let mut claimer = JoinSet::new();
    let service = Service::new("claimer", &dispatch, claim_loop);
    spawn_in(&mut claimer, keep_running(Arc::clone(&context), service));
    while claimer.join_next().await.is_some() {}
    context.quit.cancel();
    // A service whose call the store does not answer is cut off: no attempt waits for it any more.
    let ended = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORK, ended).await.is_err() {
        running.shutdown().await;
    }
    hub.emit_with(|| Event::WorkerStopped {
        worker: context.worker.clone(),
    });
    context.health.set(Health::Stopped);
}

/// Runs a service until it returns, and starts it again if it panics: only `stop` ends a set of workers.
async fn keep_running<S: StateAdapter>(context: Arc<Context<S>>, service: Service) {
    let Service { name, run } = service;
    let mut backoff = Backoff::new(context.client.entropy());
    while let Err(panic) = AssertUnwindSafe(run()).catch_unwind().await {
        let message = format!("it panicked: {}", panic_message(&*panic));
        let error = StateError::new(StateErrorKind::Transient, message);
        context.health.failed(name, &error);
        tokio::time::sleep(backoff.next_pause()).await;
        context.health.succeeded(name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Client;
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
    async fn a_service_that_panics_starts_again_and_the_worker_reports_it() {
        let client = Client::new(MemoryState::new());
        let mut events = client.events();
        let worker = client
            .worker()
            .process(|job: Attempt<Nothing>| async move { job.finish(()) });
        let context = Arc::new(worker.build().unwrap());
        let starts = Arc::new(AtomicU32::new(0));
        let service = Service::new("service", &starts, |starts| async move {
            assert!(starts.fetch_add(1, Ordering::SeqCst) == 2, "not yet");
        });
        keep_running(Arc::clone(&context), service).await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
        let mut degraded = 0;
        while let Some(event) = events.try_next() {
            degraded += u32::from(matches!(event, Event::WorkerDegraded { .. }));
        }
        assert_eq!(degraded, 2);
        assert_eq!(*context.health.subscribe().borrow(), Health::Running);
    }
}
