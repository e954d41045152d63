//! Runs one case.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Longer than any case takes, also on a slow database: a case that is not done by then hangs.
const HANGS: Duration = Duration::from_secs(60);

/// Runs a case on a runtime of its own, with two threads so that what happens at the same time really does.
///
/// # Panics
///
/// When the rule is broken, and when the case hangs.
#[doc(hidden)]
pub fn run<F, Case>(fixture: impl FnOnce() -> F, case: impl FnOnce(F) -> Case)
where
    Case: Future<Output = ()>,
{
    on_a_runtime(Box::pin(async { case(fixture()).await }));
}

/// The same for every case, so that the compiler sees the runtime once and not with each of some thousand cases.
fn on_a_runtime(case: Pin<Box<dyn Future<Output = ()> + '_>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let ended = tokio::time::timeout(HANGS, case).await;
        assert!(ended.is_ok(), "the case hangs: something waits for what never comes");
    });
}
