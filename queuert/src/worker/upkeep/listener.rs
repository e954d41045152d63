//! Turns notices into wake-ups. A lost subscription costs latency only, and the listener subscribes again.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{Backoff, Notice, StateAdapter, Topic, Wake};
use crate::client::{patiently, report};
use crate::event::Event;
use crate::worker::attempt::attempts::Attempts;
use crate::worker::context::Context;

pub(crate) async fn listen_for_jobs<S: StateAdapter>(context: Arc<Context<S>>) {
    let topic = Topic::Jobs {
        types: context.types.keys().cloned().collect(),
        demand: context.demand.clone(),
    };
    listen(&context, topic, |wake| {
        match wake {
            Wake::Notice(Notice::PausesChanged) => context.pauses.notice(),
            Wake::Resync => context.pauses.doubt(),
            Wake::Notice(_) | Wake::Failed(_) => {}
        }
        // Whatever the notice says, a claim finds the jobs that are there.
        context.wake.notify_one();
    })
    .await;
}

pub(crate) async fn listen_for_lost_leases<S: StateAdapter>(attempts: Arc<Attempts<S>>) {
    listen(&attempts.context, Topic::Leases, |wake| {
        let in_flight = attempts.in_flight.by_job();
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
            attempts.context.check_leases.notify_one();
        }
    })
    .await;
}

/// How long a subscription may take: connecting to a broker may be slow.
const LONGEST_SUBSCRIBE: Duration = Duration::from_secs(30);

async fn listen<S: StateAdapter>(context: &Context<S>, topic: Topic, on_wake: impl Fn(Wake)) {
    let mut backoff = Backoff::new(context.client.entropy());
    let listening = async {
        loop {
            let topic = topic.clone();
            match patiently(LONGEST_SUBSCRIBE, async {
                context.client.notify().subscribe(topic).await
            })
            .await
            {
                Ok(mut subscription) => {
                    // Subscribed first, then looked: the look finds changes from before the subscription.
                    on_wake(Wake::Resync);
                    while let Some(wake) = subscription.recv().await {
                        backoff.reset();
                        match wake {
                            // The adapter recovers by itself, and polling finds the jobs meanwhile.
                            Wake::Failed(error) => context.client.hub().emit_with(|| Event::NotifyFailed {
                                operation: "listen",
                                error,
                            }),
                            wake => on_wake(wake),
                        }
                    }
                    context.client.hub().emit_with(|| Event::NotifyFailed {
                        operation: "listen",
                        error: "the subscription ended; listening again".into(),
                    });
                }
                Err(error) => context.client.hub().emit_with(|| Event::NotifyFailed {
                    operation: "subscribe",
                    error: report(&error),
                }),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    };
    tokio::select! {
        biased;
        () = context.quit.cancelled() => {}
        () = listening => {}
    }
}
