//! Looks at how much waits, as often as the observability adapter asks for it. Without one nobody looks.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{SampleQueues, StateAdapter};
use crate::client::report;
use crate::event::Event;
use crate::worker::context::{Runtime, contained};

/// How many jobs of a type are counted at most: enough to see that much waits, few enough to be cheap.
const LIMIT: usize = 10_000;

pub(crate) async fn sample_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let hub = runtime.client.hub();
    let Some(interval) = hub.ask(|adapter| adapter.sample_queues_every()) else {
        return;
    };
    let sample = SampleQueues::new(runtime.types.keys().cloned().collect(), LIMIT);
    loop {
        match contained(runtime.client.state().sample_queues(&sample)).await {
            // A store that cannot tell will not learn it.
            Ok(samples) if samples.is_empty() => return,
            Ok(samples) => hub.emit_often(|| Event::QueuesSampled {
                worker: runtime.worker.clone(),
                samples,
            }),
            // A figure is missing, and nothing that users wait for: no reason to call the worker unwell.
            Err(error) => hub.emit_with(|| Event::StateFailed {
                operation: "sample",
                error: report(&error),
            }),
        }
        let pause = runtime
            .client
            .entropy()
            .jittered(interval, 0.1)
            .max(Duration::from_millis(1));
        tokio::select! {
            biased;
            () = runtime.quit.cancelled() => return,
            () = runtime.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
