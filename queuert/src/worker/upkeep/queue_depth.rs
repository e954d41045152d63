//! Counts the jobs that wait, as often as the observability adapter asks for it. Without such an adapter it ends at once.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{SampleQueues, StateAdapter};
use crate::client::report;
use crate::event::Event;
use crate::worker::contained::contained;
use crate::worker::context::Context;

/// The most jobs of a type that are counted: enough to see that many wait, few enough to be cheap.
const LIMIT: usize = 10_000;

pub(crate) async fn queue_depth_loop<S: StateAdapter>(context: Arc<Context<S>>) {
    let hub = context.client.hub();
    let Some(interval) = hub.ask(|adapter| adapter.sample_queues_every()) else {
        return;
    };
    let sample = SampleQueues::new(context.types.keys().cloned().collect(), LIMIT);
    loop {
        match contained(context.client.state().sample_queues(&sample)).await {
            // The store does not support it.
            Ok(samples) if samples.is_empty() => return,
            Ok(samples) => hub.emit_often(|| Event::QueuesSampled {
                worker: context.worker.clone(),
                samples,
            }),
            // Not recorded as bad health: only a metric is missing.
            Err(error) => hub.emit_with(|| Event::StateFailed {
                operation: "sample",
                error: report(&error),
            }),
        }
        let pause = context
            .client
            .entropy()
            .jittered(interval, 0.1)
            .max(Duration::from_millis(1));
        tokio::select! {
            biased;
            () = context.quit.cancelled() => return,
            () = context.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
