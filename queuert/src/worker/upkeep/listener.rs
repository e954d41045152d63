//! Turns notices into wake-ups. Losing the subscription costs latency only, and is mended.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{Notice, StateAdapter, Topic, Wake};
use crate::client::{patiently, report};
use crate::event::Event;
use crate::worker::context::Runtime;
use crate::worker::health::Backoff;

pub(crate) async fn listen_for_jobs<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let topic = Topic::Jobs {
        types: runtime.types.keys().cloned().collect(),
        demand: runtime.demand.clone(),
    };
    // Whatever comes, a look at the store tells what there is to claim.
    listen(&runtime, topic, |_| runtime.wake.notify_one()).await;
}

pub(crate) async fn listen_for_lost_leases<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    listen(&runtime, Topic::Leases, |wake| {
        let in_flight = runtime.flights.by_job();
        let doubted = match wake {
            Wake::Notice(Notice::LeaseLost(job)) => match in_flight.get(&job) {
                Some(attempt) => {
                    attempt.held().doubted = true;
                    true
                }
                None => false,
            },
            Wake::Notice(_) | Wake::Failed(_) => false,
            Wake::Resync => {
                in_flight.values().for_each(|attempt| attempt.held().doubted = true);
                !in_flight.is_empty()
            }
        };
        if doubted {
            runtime.check_leases.notify_one();
        }
    })
    .await;
}

/// How long a subscription may take: connecting to a broker may be slow.
const PATIENCE: Duration = Duration::from_secs(30);

async fn listen<S: StateAdapter>(runtime: &Runtime<S>, topic: Topic, on_wake: impl Fn(Wake)) {
    let mut backoff = Backoff::new(runtime.client.entropy());
    let listening = async {
        loop {
            let topic = topic.clone();
            match patiently(PATIENCE, async { runtime.client.notify().subscribe(topic).await }).await {
                Ok(mut subscription) => {
                    // Listen first, then look: what happened before the subscription is found by looking.
                    on_wake(Wake::Resync);
                    while let Some(wake) = subscription.recv().await {
                        backoff.reset();
                        match wake {
                            // The adapter goes on by itself, and the poll finds the jobs meanwhile.
                            Wake::Failed(error) => runtime.client.hub().emit_with(|| Event::NotifyFailed {
                                operation: "listen",
                                error,
                            }),
                            wake => on_wake(wake),
                        }
                    }
                    runtime.client.hub().emit_with(|| Event::NotifyFailed {
                        operation: "listen",
                        error: "the subscription ended; listening again".into(),
                    });
                }
                Err(error) => runtime.client.hub().emit_with(|| Event::NotifyFailed {
                    operation: "subscribe",
                    error: report(&error),
                }),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    };
    tokio::select! {
        biased;
        () = runtime.quit.cancelled() => {}
        () = listening => {}
    }
}
