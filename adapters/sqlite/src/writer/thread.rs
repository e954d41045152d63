//! The thread on which batches run, with a connection of rusqlite: statements do not have to go to another thread and back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use queuert::{StateError, StateErrorKind};
use rusqlite::OpenFlags;
use tokio::sync::oneshot;

use crate::connection::Connection;
use crate::connection::connections::OpenConnection;
use crate::connection::identity::LogFiles;
use crate::error::{StatementError, copy};
use crate::store::Store;
use crate::writer::batch::{Executed, Request, run_all};

/// How to open the connection.
#[derive(Clone, Debug)]
pub(crate) struct ThreadOptions {
    pub(crate) path: PathBuf,
    /// The same path as SQLite has resolved it, beside which the log is.
    pub(crate) database: PathBuf,
    pub(crate) busy_timeout: Duration,
    pub(crate) pragmas: Vec<(&'static str, &'static str)>,
}

/// The result of a batch.
pub(crate) enum BatchOutcome {
    /// It was committed, or the commit failed; all callers have been answered.
    Answered,
    /// Another process has the write lock. Nothing has run.
    Busy(Vec<Request>, StatementError),
    /// One of the operations failed. Nothing has been written.
    Failed(Vec<Request>, StateError),
}

/// How many statements stay prepared: all statements, in all sizes that usually occur.
const STATEMENTS: usize = 256;

#[derive(Debug)]
pub(crate) struct WriterThread {
    work: mpsc::Sender<(Vec<Request>, oneshot::Sender<BatchOutcome>)>,
    ended: oneshot::Receiver<()>,
}

impl WriterThread {
    /// Starts the thread and opens its connection. It ends, and closes the connection, when this value is dropped.
    pub(crate) async fn start(
        store: Arc<Store>,
        options: ThreadOptions,
        open: OpenConnection,
    ) -> Result<Self, StateError> {
        let (first, opened) = oneshot::channel();
        let thread = Self::spawn(store, options, open, Some(first))?;
        opened.await.map_err(|_| thread_ended())??;
        Ok(thread)
    }

    /// Starts the thread, which opens its connection for the first batch.
    pub(crate) fn start_lazily(
        store: Arc<Store>,
        options: ThreadOptions,
        open: OpenConnection,
    ) -> Result<Self, StateError> {
        Self::spawn(store, options, open, None)
    }

    fn spawn(
        store: Arc<Store>,
        options: ThreadOptions,
        open: OpenConnection,
        first: Option<oneshot::Sender<Result<(), StatementError>>>,
    ) -> Result<Self, StateError> {
        let (work, queue) = mpsc::channel::<(Vec<Request>, oneshot::Sender<BatchOutcome>)>();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("queuert-sqlite".to_owned());
        let started = thread.spawn(move || {
            // Dropped last, after the connection.
            let _open = open;
            let mut runner = Runner {
                store,
                logs: LogFiles::beside(&options.database),
                options,
                connection: None,
            };
            if let Some(first) = first {
                let opened = runner.open().map(|connection| runner.connection = Some(connection));
                let failed = opened.is_err();
                if first.send(opened).is_err() || failed {
                    return;
                }
            }
            for (batch, reply) in queue {
                // A panic drops the batch, whose callers notice that their replies are gone, and the connection, which rolls
                // back. The thread goes on.
                if let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| runner.run(batch))) {
                    let _ = reply.send(outcome);
                }
            }
            drop(runner);
            let _ = end.send(());
        });
        started.map_err(|error| {
            StateError::new(StateErrorKind::Transient, "no thread could be started for the writer; check the limits of threads and memory of the process (`ulimit -u`)").with_source(error)
        })?;
        Ok(Self { work, ended })
    }

    /// Runs a batch in one transaction. If the future is dropped, the batch still runs, entirely or not at all.
    pub(crate) async fn run(&self, batch: Vec<Request>) -> BatchOutcome {
        let (reply, outcome) = oneshot::channel();
        if let Err(mpsc::SendError((batch, _))) = self.work.send((batch, reply)) {
            return BatchOutcome::Failed(batch, thread_ended());
        }
        // If the thread has panicked, the callers notice that their replies are gone.
        outcome.await.unwrap_or(BatchOutcome::Answered)
    }

    /// Ends the thread and waits until its connection is closed.
    pub(crate) async fn close(self) {
        drop(self.work);
        let _ = self.ended.await;
    }
}

fn thread_ended() -> StateError {
    StateError::new(
        StateErrorKind::Transient,
        "the thread of the writer has ended; open the store again",
    )
}

fn stuck() -> StateError {
    StateError::new(
        StateErrorKind::Misconfigured,
        "an operation waited on a connection that never makes it wait; this is a fault of queuert",
    )
}

struct Runner {
    store: Arc<Store>,
    options: ThreadOptions,
    /// `None` after a failure that leaves its state in doubt.
    connection: Option<rusqlite::Connection>,
    /// The log files, as the connection has found them.
    logs: LogFiles,
}

impl Runner {
    fn run(&mut self, mut batch: Vec<Request>) -> BatchOutcome {
        let kept = self.connection.take();
        // A connection to another file at the path would take the log of the old file for the log of the new one, and write it
        // into the new file.
        if kept.is_none()
            && let Err(moved) = self.store.check_file()
        {
            return BatchOutcome::Failed(batch, moved);
        }
        let mut connection = match kept.map_or_else(|| self.open(), Ok) {
            Ok(connection) => connection,
            Err(error) => {
                return match self.store.check_file() {
                    Ok(()) => refused(batch, error),
                    // That is why the file cannot be opened.
                    Err(moved) => BatchOutcome::Failed(batch, moved),
                };
            }
        };
        if let Err(error) = execute(&connection, "BEGIN IMMEDIATE") {
            self.keep(connection);
            return refused(batch, error.into());
        }
        let news = batch.iter().any(Request::is_news);
        let mut executed = Vec::with_capacity(batch.len());
        // A future on this kind of connection never yields, so the first poll completes it.
        let ran = run_all(
            &self.store,
            &mut Connection::Rusqlite(&mut connection),
            &mut batch,
            &mut executed,
        )
        .now_or_never();
        // Before the commit, so that nothing is written to a file that no other program finds.
        if let Err(error) = self.check_files() {
            self.keep(connection);
            let all = executed.into_iter().map(Executed::into_request).chain(batch);
            all.for_each(|request| request.fail(copy(&error)));
            return BatchOutcome::Answered;
        }
        if let Err(error) = ran.unwrap_or_else(|| Err(stuck())) {
            self.keep(connection);
            let again = executed.into_iter().map(Executed::into_request).chain(batch);
            return BatchOutcome::Failed(again.collect(), error);
        }
        match execute(&connection, "COMMIT") {
            Ok(()) => {
                if news {
                    self.store.committed();
                }
                self.connection = Some(connection);
                executed.into_iter().for_each(Executed::send);
            }
            Err(error) => {
                self.keep(connection);
                let error = StatementError::from(error);
                // Rows of one of them violate a deferred constraint of the application. Nothing has been written. Run one
                // by one, only that one fails.
                if error.is_constraint() {
                    return BatchOutcome::Failed(
                        executed.into_iter().map(Executed::into_request).collect(),
                        error.into(),
                    );
                }
                let error = StateError::from(error);
                executed.into_iter().for_each(|answer| answer.fail(copy(&error)));
            }
        }
        BatchOutcome::Answered
    }

    fn check_files(&mut self) -> Result<(), StateError> {
        self.store.check_file()?;
        self.logs.check()
    }

    fn open(&mut self) -> Result<rusqlite::Connection, StatementError> {
        self.logs.forget();
        // The flags that sqlx uses.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
        let connection = rusqlite::Connection::open_with_flags(&self.options.path, flags)?;
        connection.busy_timeout(self.options.busy_timeout)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        for (name, value) in &self.options.pragmas {
            connection.pragma_update(None, name, value)?;
        }
        Ok(connection)
    }

    /// Rolls back the open transaction and keeps the connection, unless that fails.
    fn keep(&mut self, connection: rusqlite::Connection) {
        if connection.is_autocommit() || execute(&connection, "ROLLBACK").is_ok() {
            self.connection = Some(connection);
        }
    }
}

/// The outcome of a batch that has not begun.
fn refused(batch: Vec<Request>, error: StatementError) -> BatchOutcome {
    if error.is_busy() {
        return BatchOutcome::Busy(batch, error);
    }
    BatchOutcome::Failed(batch, error.into())
}

fn execute(connection: &rusqlite::Connection, text: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(text)?.execute(()).map(drop)
}
