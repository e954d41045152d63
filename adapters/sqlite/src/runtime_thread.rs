//! Threads with a runtime of their own.

use std::io;
use std::thread::Builder;

use tokio::runtime::{self, Runtime};

/// Starts a thread for this work, and builds a runtime on it. A runtime that is built before would be dropped by the caller if
/// the thread cannot be started, and tokio panics if a runtime is dropped in asynchronous code.
pub(crate) fn start(name: &str, work: impl FnOnce(io::Result<Runtime>) + Send + 'static) -> io::Result<()> {
    start_as(Builder::new().name(name.to_owned()), work)
}

fn start_as(thread: Builder, work: impl FnOnce(io::Result<Runtime>) + Send + 'static) -> io::Result<()> {
    let started = thread.spawn(move || work(runtime::Builder::new_current_thread().enable_time().build()));
    started.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_thread_that_cannot_be_started_is_an_error_in_asynchronous_code() {
        let (reply, answer) = oneshot::channel::<()>();
        // More than a machine can address.
        let thread = Builder::new().stack_size(1 << 50);
        let started = start_as(thread, |runtime| {
            drop((runtime, reply));
        });
        assert!(started.is_err(), "the system has started it");
        assert!(answer.await.is_err());
    }

    #[tokio::test]
    async fn the_work_has_a_runtime() {
        let (reply, answer) = oneshot::channel();
        let started = start("queuert-test", |runtime| {
            let _ = reply.send(runtime.map(|runtime| runtime.block_on(async { 7 })));
        });
        started.expect("a thread can be started");
        let worked = answer.await.expect("the thread answers");
        assert_eq!(worked.expect("a runtime can be built"), 7);
    }
}
