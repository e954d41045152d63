//! Wake-ups through Postgres: the contract, what goes over the channel, who of a fleet looks, and outages.

mod channel;
mod fleet;
mod line;
mod outages;
mod poolers;
mod workers;

use std::sync::Arc;

use line::Line;
use queuert::adapter::NotifyAdapter;
use queuert_conformance::{NotifyCapabilities, NotifyFixture, notify_conformance};

impl NotifyFixture for Line {
    async fn connect(&self) -> Arc<dyn NotifyAdapter> {
        Arc::new(self.join().await)
    }

    fn capabilities(&self) -> NotifyCapabilities {
        NotifyCapabilities::none().hints().interrupt()
    }

    /// Whose connections they are does not matter to whoever has to mend his own.
    async fn interrupt(&self, _: &Arc<dyn NotifyAdapter>) {
        self.end_all_sessions().await;
    }
}

mod conformance {
    use super::*;

    notify_conformance!(Line::new());
}
