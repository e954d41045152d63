//! Offers the store time for its upkeep. It is a task of its own, so that no other service waits for it.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{Backoff, Maintain, Maintained, StateAdapter};
use crate::client::report;
use crate::effects::Effects;
use crate::event::Event;
use crate::worker::contained::contained;
use crate::worker::context::Context;

/// The pause before the first offer: workers that live only for a moment leave upkeep to others, and workers that start at the
/// same time do not all offer at once.
const FIRST: Duration = Duration::from_secs(1);
/// However soon the store wants to go on, other processes get their turn.
const SHORTEST: Duration = Duration::from_millis(10);

pub(crate) async fn maintain_loop<S: StateAdapter>(context: Arc<Context<S>>) {
    let entropy = context.client.entropy();
    let maintain = Maintain::new(context.worker.clone());
    let mut backoff = Backoff::new(entropy);
    let mut pause = entropy.jittered(FIRST, 0.5);
    loop {
        let turn = async {
            tokio::time::sleep(pause).await;
            contained(context.client.state().maintain(&maintain)).await
        };
        // Upkeep does not delay a stop: a call that is dropped here has done whole pieces of work.
        let result = tokio::select! {
            biased;
            () = context.quit.cancelled() => return,
            () = context.stop.cancelled() => return,
            result = turn => result,
        };
        match result {
            Ok(maintained) => {
                backoff.reset();
                let again_in = maintained.again_in;
                announce(&context, maintained).await;
                let Some(again_in) = again_in else { return };
                pause = entropy.jittered(again_in, 0.1).max(SHORTEST);
            }
            // Not recorded as bad health: jobs run as well without upkeep, and the other services notice by themselves if
            // the store is down.
            Err(error) => {
                context.client.hub().emit_with(|| Event::StateFailed {
                    operation: "maintain",
                    error: report(&error),
                });
                pause = backoff.next_pause().max(FIRST);
            }
        }
    }
}

async fn announce<S: StateAdapter>(context: &Context<S>, maintained: Maintained) {
    let mut effects = Effects::new(context.client.hub());
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
            worker: context.worker.clone(),
            finding: finding.into(),
        });
    }
    context.flush(effects).await;
}
