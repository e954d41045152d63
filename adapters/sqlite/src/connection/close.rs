//! Closing a store.

use std::collections::VecDeque;
use std::fs;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{FusedFuture, join};
use queuert::adapter::BoxFuture;
use queuert::{StateError, StateErrorKind};
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{Dispatch, dispatcher, warn};

use crate::connection::connections::Counts;
use crate::connection::identity::log_beside;
use crate::error::copy;
use crate::runtime_thread;
use crate::state::Inner;
use crate::writer::batch::Reply;

/// How long closing waits for the connections of other runtimes, which the program may not drive.
const OTHER_RUNTIMES: Duration = Duration::from_secs(1);

/// How long closing waits for the write lock, to tell other processes that this one holds no leases.
const UNREGISTER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long closing waits before it logs what it waits for.
const WARN_AFTER: Duration = Duration::from_secs(1);

/// Whether a store is open.
#[derive(Debug, Default)]
pub(crate) enum CloseStage {
    #[default]
    Open,
    /// A thread closes the store, and answers the calls that are sent to it.
    Closing(mpsc::UnboundedSender<Reply<()>>),
    Closed,
}

/// What a call of `close` has to do.
pub(crate) enum CloseCall {
    /// Nothing: the store is closed.
    Closed,
    /// Wait for the thread that another call has started.
    Join(CloseAnswer),
    /// Start the thread, which answers the calls in the channel.
    Start(mpsc::UnboundedReceiver<Reply<()>>, CloseAnswer),
}

type CloseAnswer = oneshot::Receiver<Result<(), StateError>>;

impl CloseStage {
    pub(crate) fn call(&mut self) -> CloseCall {
        let (reply, answer) = oneshot::channel();
        let reply = match &*self {
            Self::Closed => return CloseCall::Closed,
            Self::Open => reply,
            Self::Closing(calls) => match calls.send(reply) {
                Ok(()) => return CloseCall::Join(answer),
                // The thread could not be started, or has panicked.
                Err(mpsc::error::SendError(reply)) => reply,
            },
        };
        let (calls, arriving) = mpsc::unbounded_channel();
        let _ = calls.send(reply);
        *self = Self::Closing(calls);
        CloseCall::Start(arriving, answer)
    }
}

/// Waits for the thread that closes the store.
pub(crate) async fn wait_for_close(answer: CloseAnswer) -> Result<(), StateError> {
    // The thread answers, unless it panics.
    answer.await.unwrap_or_else(|_| {
        let message = "closing the store failed; call `close` again";
        Err(StateError::new(StateErrorKind::Transient, message))
    })
}

/// A store that accepts no more calls, and whose connections are still open.
pub(crate) struct Closing {
    pub(crate) inner: Arc<Inner>,
    /// Tells other processes that this one holds no leases. `None` if that is done.
    pub(crate) unregister: Option<BoxFuture<'static, ()>>,
    /// Whether other runtimes have writers.
    pub(crate) shared: bool,
    /// Ends when the writer of this runtime has closed its connections.
    pub(crate) writer: BoxFuture<'static, ()>,
    /// The `tracing` subscriber of the caller, which the thread that closes the store would not have.
    pub(crate) log: Dispatch,
}

impl Closing {
    /// Closes the store on a separate thread: a runtime that the program does not drive, or that ends, would leave the store
    /// half closed.
    pub(crate) fn start(self, mut calls: mpsc::UnboundedReceiver<Reply<()>>) -> Result<(), StateError> {
        let failed = |error| {
            let message = "no thread could be started to close the store; call `close` again";
            StateError::new(StateErrorKind::Transient, message).with_source(error)
        };
        let started = runtime_thread::start("queuert-close", move |runtime| match runtime {
            Ok(runtime) => runtime.block_on(self.finish(calls)),
            Err(error) => {
                // The next call starts another thread.
                calls.close();
                let error = failed(error);
                while let Ok(reply) = calls.try_recv() {
                    let _ = reply.send(Err(copy(&error)));
                }
            }
        });
        started.map_err(failed)
    }

    /// Waits until all connections of the store are closed, folds the log into the file, and answers the calls. A call that
    /// has waited too long is answered with an error, and closing goes on.
    async fn finish(self, mut calls: mpsc::UnboundedReceiver<Reply<()>>) {
        let Self {
            inner,
            unregister,
            shared,
            writer,
            log,
        } = self;
        let inner = inner.as_ref();
        let connections = &inner.store.connections;
        let patience = inner.lock_timeout.max(OTHER_RUNTIMES);
        let (writer_closed, when_writer_closed) = oneshot::channel();
        let mut closing = pin!(async {
            let readers = async {
                if let Some(readers) = &inner.readers {
                    readers.close().await;
                }
            };
            let own_writer = async {
                if let Some(unregister) = unregister {
                    let _ = timeout(UNREGISTER_TIMEOUT, unregister).await;
                }
                writer.await;
                let _ = writer_closed.send(());
            };
            join(readers, own_writer).await;
            connections.until(|counts| counts.open == 0).await;
        });
        // Ends when only connections of other runtimes are left.
        let mut only_others = pin!(
            async {
                let _ = when_writer_closed.await;
                connections.until(|counts| counts.transactions == 0).await;
                if shared {
                    sleep(OTHER_RUNTIMES).await;
                } else {
                    pending::<()>().await;
                }
            }
            .fuse()
        );
        let mut warning = pin!(
            async {
                if patience > WARN_AFTER {
                    sleep(WARN_AFTER).await;
                } else {
                    // The error comes as soon as the warning would.
                    pending::<()>().await;
                }
            }
            .fuse()
        );
        // The calls in the order of their arrival, with the time until which each waits.
        let mut waiting: VecDeque<(Instant, Reply<()>)> = VecDeque::new();
        loop {
            let first = waiting.front().map(|(deadline, _)| *deadline);
            let too_late = async {
                match first {
                    Some(deadline) => sleep_until(deadline).await,
                    None => pending().await,
                }
            };
            let answered = tokio::select! {
                biased;
                () = closing.as_mut() => break,
                Some(reply) = calls.recv() => {
                    waiting.push_back((Instant::now() + patience, reply));
                    continue;
                }
                () = only_others.as_mut(), if !only_others.is_terminated() => {
                    inner.store.liveness.release();
                    // These calls are answered with an error, whether or not this succeeds.
                    let _ = checkpoint(inner).await;
                    waiting.len()
                }
                () = too_late => 1,
                () = warning.as_mut(), if !warning.is_terminated() => {
                    warn_waiting(&log, connections.counts(), patience);
                    continue;
                }
            };
            for (_, reply) in waiting.drain(..answered) {
                let _ = reply.send(Err(still_open(connections.counts(), patience)));
            }
        }
        inner.store.liveness.release();
        let folded = checkpoint(inner).await;
        // Under the lock, so that every call that arrives before this is answered below.
        *inner.closing.lock() = match &folded {
            Ok(()) => CloseStage::Closed,
            // The next call tries again to fold the log.
            Err(_) => CloseStage::Open,
        };
        while let Ok(reply) = calls.try_recv() {
            waiting.push_back((Instant::now(), reply));
        }
        for (_, reply) in waiting {
            let _ = reply.send(folded.as_ref().map(|&()| ()).map_err(copy));
        }
    }
}

/// Logs why closing takes so long.
fn warn_waiting(log: &Dispatch, left: Counts, patience: Duration) {
    let why = match left.transactions {
        0 => "another runtime of this process has a connection to it (drive that runtime, or drop it), or a call that was made \
              before has not ended"
            .to_owned(),
        1 => "a transaction that was begun before is still open: commit it, roll it back or drop it".to_owned(),
        many => format!("{many} transactions that were begun before are still open: commit, roll back or drop them"),
    };
    // The subscriber is code of the application: its panics must not end the thread that closes the store.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        dispatcher::with_default(log, || {
            warn!(
                target: "queuert",
                "closing the SQLite store has waited for {WARN_AFTER:?}, and waits on for {patience:?} in all, because {why}"
            );
        });
    }));
}

fn still_open(left: Counts, patience: Duration) -> StateError {
    let message = match left.transactions {
        0 => "the store takes no more calls, but the file is not closed yet: another runtime of this process has a connection \
              to it and stands still (drive that runtime, or drop it), or a call that was made before has not ended. The \
              file is closed after that"
            .to_owned(),
        _ => format!(
            "the store takes no more calls, but the file is not closed yet: a transaction that was begun before is still open \
             after {patience:?}. Commit it, roll it back or drop it, best before the store is closed; that works now too, and \
             the file is closed after that"
        ),
    };
    StateError::new(StateErrorKind::Transient, message)
}

/// Folds the log into the file, if two connections that closed at the same moment have left it. Fails if the file is not at the
/// path any more: SQLite has left the log there, and the caller must know before a program opens the file at the path.
async fn checkpoint(inner: &Inner) -> Result<(), StateError> {
    let Some(options) = inner.queue.options() else {
        return Ok(());
    };
    inner.store.check_file_at_close()?;
    // An empty log may be left too, after it was folded.
    let is_left = |database: &PathBuf| fs::exists(log_beside(database)).unwrap_or(false);
    if !options.database.as_ref().is_some_and(is_left) {
        return Ok(());
    }
    // If the log cannot be folded, the next connection reads it.
    if let Ok(mut connection) = SqliteConnection::connect_with(&options.connect).await {
        // This works while other connections are open, if they are idle.
        let folded = sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)");
        let _ = folded.execute(&mut connection).await;
        let _ = connection.close().await;
    }
    Ok(())
}
