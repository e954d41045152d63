//! The contract of the notify adapters, kept by the one in memory.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::NotifyAdapter;
use queuert::memory::InProcessNotify;
use queuert_conformance::{NotifyCapabilities, NotifyFixture, notify_conformance};

/// Clones of one adapter are the participants of one network.
struct InProcess(InProcessNotify);

impl NotifyFixture for InProcess {
    async fn connect(&self) -> Arc<dyn NotifyAdapter> {
        Arc::new(self.0.clone())
    }

    fn capabilities(&self) -> NotifyCapabilities {
        NotifyCapabilities::none().hints()
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(20)
    }
}

notify_conformance!(InProcess(InProcessNotify::new()));
