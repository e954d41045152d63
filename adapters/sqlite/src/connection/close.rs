//! How a store is closed.

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
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{Dispatch, dispatcher, warn};

use crate::connection::connections::Counts;
use crate::connection::identity::log_beside;
use crate::error::copy;
use crate::runtime_thread;
use crate::state::Inner;
use crate::writer::batch::Reply;

/// How long closing waits for the connections of other runtimes, which may stand still.
const OTHER_RUNTIMES: Duration = Duration::from_secs(1);

/// How long closing waits for the write lock, to say that there is nothing left to wait for.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long closing waits before it says for what.
const SILENCE: Duration = Duration::from_secs(1);

/// Where closing a store is.
#[derive(Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Open,
    /// A thread closes it, and answers these calls.
    Closing(mpsc::UnboundedSender<Reply<()>>),
    Closed,
}

/// What a call of `close` does.
pub(crate) enum Call {
    /// Nothing: the store is closed.
    Closed,
    /// Waits for the thread that another call has started.
    Join(Answer),
    /// Starts the thread, which answers the calls in here.
    Start(mpsc::UnboundedReceiver<Reply<()>>, Answer),
}

type Answer = oneshot::Receiver<Result<(), StateError>>;

impl Stage {
    pub(crate) fn call(&mut self) -> Call {
        let (reply, answer) = oneshot::channel();
        let reply = match &*self {
            Self::Closed => return Call::Closed,
            Self::Open => reply,
            Self::Closing(calls) => match calls.send(reply) {
                Ok(()) => return Call::Join(answer),
                // The thread could not be started, or has panicked.
                Err(mpsc::error::SendError(reply)) => reply,
            },
        };
        let (calls, arriving) = mpsc::unbounded_channel();
        let _ = calls.send(reply);
        *self = Self::Closing(calls);
        Call::Start(arriving, answer)
    }
}

/// Waits for the thread that closes the store.
pub(crate) async fn joined(answer: Answer) -> Result<(), StateError> {
    // It answers, unless it panics.
    answer.await.unwrap_or_else(|_| {
        let message = "closing the store failed; call `close` again";
        Err(StateError::new(StateErrorKind::Transient, message))
    })
}

/// A store that takes no more calls, and whose connections are still open.
pub(crate) struct Closing {
    pub(crate) inner: Arc<Inner>,
    /// Tells other processes that this one has nothing left to do. `None` if that is done.
    pub(crate) depart: Option<BoxFuture<'static, ()>>,
    /// Whether other runtimes have writers.
    pub(crate) shared: bool,
    /// Ends when the writer of this runtime has closed its connections.
    pub(crate) writer: BoxFuture<'static, ()>,
    /// The subscriber of the caller, whose thread is another one.
    pub(crate) log: Dispatch,
}

impl Closing {
    /// Closes the store on a thread of its own, because a runtime that nobody drives, or that ends, would leave it half
    /// closed.
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

    /// Waits until all connections of the store are closed, folds the log into the file, and answers the calls. A call for
    /// which that takes too long is answered with an error, and closing goes on.
    async fn finish(self, mut calls: mpsc::UnboundedReceiver<Reply<()>>) {
        let Self {
            inner,
            depart,
            shared,
            writer,
            log,
        } = self;
        let inner = inner.as_ref();
        let connections = &inner.core.connections;
        let patience = inner.lock_timeout.max(OTHER_RUNTIMES);
        let (say_written, written) = oneshot::channel();
        let mut closing = pin!(async {
            let readers = async {
                if let Some(readers) = &inner.readers {
                    readers.close().await;
                }
            };
            let own_writer = async {
                if let Some(depart) = depart {
                    let _ = timeout(LAST_WORDS, depart).await;
                }
                writer.await;
                let _ = say_written.send(());
            };
            join(readers, own_writer).await;
            connections.until(|counts| counts.open == 0).await;
        });
        // Ends when only other runtimes are left.
        let mut only_others = pin!(
            async {
                let _ = written.await;
                connections.until(|counts| counts.transactions == 0).await;
                match shared {
                    true => sleep(OTHER_RUNTIMES).await,
                    false => pending().await,
                }
            }
            .fuse()
        );
        let mut silence = pin!(
            async {
                match patience > SILENCE {
                    true => sleep(SILENCE).await,
                    // The error comes as soon.
                    false => pending().await,
                }
            }
            .fuse()
        );
        // The calls in the order in which they came, with the time until which each waits.
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
                    inner.core.presence.leave();
                    // These calls are answered with an error anyway.
                    let _ = fold(inner).await;
                    waiting.len()
                }
                () = too_late => 1,
                () = silence.as_mut(), if !silence.is_terminated() => {
                    say(&log, connections.counts(), patience);
                    continue;
                }
            };
            for (_, reply) in waiting.drain(..answered) {
                let _ = reply.send(Err(still_open(connections.counts(), patience)));
            }
        }
        inner.core.presence.leave();
        let folded = fold(inner).await;
        // Under the lock, so that no call comes after the last one that is answered.
        *inner.closing.lock() = match &folded {
            Ok(()) => Stage::Closed,
            // The next call tries again to fold the log.
            Err(_) => Stage::Open,
        };
        while let Ok(reply) = calls.try_recv() {
            waiting.push_back((Instant::now(), reply));
        }
        for (_, reply) in waiting {
            let _ = reply.send(folded.as_ref().map(|&()| ()).map_err(copy));
        }
    }
}

/// Says why closing takes so long.
fn say(log: &Dispatch, left: Counts, patience: Duration) {
    let why = match left.transactions {
        0 => "another runtime of this process has a connection to it (drive that runtime, or drop it), or a call that was made \
              before has not ended"
            .to_owned(),
        1 => "a transaction that was begun before is still open: commit it, roll it back or drop it".to_owned(),
        many => format!("{many} transactions that were begun before are still open: commit, roll back or drop them"),
    };
    // A subscriber is code of somebody else's: its panics do not reach the thread that closes the store.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        dispatcher::with_default(log, || {
            warn!(
                target: "queuert",
                "closing the SQLite store has waited for {SILENCE:?}, and waits on for {patience:?} in all, because {why}"
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

/// Moves what is left in the log into the file: two connections that closed at the same moment may have left it. Fails if
/// the file is not at the path any more: SQLite has left the log there, and the caller must know before the next program
/// opens what is at the path.
async fn fold(inner: &Inner) -> Result<(), StateError> {
    let Some(plan) = inner.queue.plan() else {
        return Ok(());
    };
    inner.core.check_file_at_close()?;
    // An empty one is left too, if it was folded before.
    let is_left = |database: &PathBuf| fs::exists(log_beside(database)).unwrap_or(false);
    if !plan.database.as_ref().is_some_and(is_left) {
        return Ok(());
    }
    // What cannot be folded stays in the log, where the next connection finds it.
    if let Ok(mut connection) = SqliteConnection::connect_with(&plan.options).await {
        // This works beside other connections too, if they are idle.
        let folded = sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)");
        let _ = folded.execute(&mut connection).await;
        let _ = connection.close().await;
    }
    Ok(())
}
