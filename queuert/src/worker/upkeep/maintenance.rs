//! Offers the store time for its upkeep. A task of its own, so that nothing else waits for it.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{Maintain, Maintained, StateAdapter};
use crate::client::report;
use crate::effects::Effects;
use crate::event::Event;
use crate::worker::context::{Runtime, contained};
use crate::worker::health::Backoff;

/// Before the first offer: workers that live for a moment only are not for upkeep, and of many that start at once
/// not all should come at once.
const FIRST: Duration = Duration::from_secs(1);
/// However soon the store wants to go on, others have their turn.
const SHORTEST: Duration = Duration::from_millis(10);

pub(crate) async fn maintain_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let entropy = runtime.client.entropy();
    let maintain = Maintain::new(runtime.worker.clone());
    let mut backoff = Backoff::new(entropy);
    let mut pause = entropy.jittered(FIRST, 0.5);
    loop {
        let turn = async {
            tokio::time::sleep(pause).await;
            contained(runtime.client.state().maintain(&maintain)).await
        };
        // Upkeep holds up no stop: what is dropped here has done whole pieces of work.
        let result = tokio::select! {
            biased;
            () = runtime.quit.cancelled() => return,
            () = runtime.stop.cancelled() => return,
            result = turn => result,
        };
        match result {
            Ok(maintained) => {
                backoff.reset();
                let again_in = maintained.again_in;
                tell(&runtime, maintained).await;
                let Some(again_in) = again_in else { return };
                pause = entropy.jittered(again_in, 0.1).max(SHORTEST);
            }
            // No word to the keeper of health: jobs run as well without upkeep, and the other loops notice by themselves
            // if the store is down.
            Err(error) => {
                runtime.client.hub().emit_with(|| Event::StateFailed {
                    operation: "maintain",
                    error: report(&error),
                });
                pause = backoff.next_pause().max(FIRST);
            }
        }
    }
}

async fn tell<S: StateAdapter>(runtime: &Runtime<S>, maintained: Maintained) {
    let mut effects = Effects::new(runtime.client.hub());
    for chain in &maintained.deleted {
        effects.often(|| Event::ChainDeleted {
            chain: chain.id,
            type_name: chain.type_name.clone(),
        });
    }
    for job in &maintained.unblocked {
        effects.unblocked(job);
    }
    for finding in maintained.findings {
        effects.event(|| Event::MaintenanceFinding {
            worker: runtime.worker.clone(),
            finding: finding.into(),
        });
    }
    runtime.flush(effects).await;
}
