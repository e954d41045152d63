//! The thread on which groups of operations run: a connection of this library's own, without a way there and back for
//! every statement.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use queuert::{StateError, StateErrorKind};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use crate::connection::Db;
use crate::connection::connections::Open;
use crate::connection::identity::Logs;
use crate::error::{DbError, copy};
use crate::store::Core;
use crate::writer::batch::{Answer, Request, run_all};

/// How to open the connection.
#[derive(Clone, Debug)]
pub(crate) struct OwnOptions {
    pub(crate) path: PathBuf,
    /// The same as SQLite knows it, beside which the log is.
    pub(crate) database: PathBuf,
    pub(crate) busy_timeout: Duration,
    pub(crate) pragmas: Vec<(&'static str, &'static str)>,
}

/// How a group went.
pub(crate) enum Outcome {
    /// It was committed, or the commit failed; everybody has been told.
    Told,
    /// Another process has the write lock. Nothing has run.
    Busy(Vec<Request>, DbError),
    /// One of them failed. Nothing has been written.
    Failed(Vec<Request>, StateError),
}

/// Statements that are kept prepared: every one there is, in the sizes that come up.
const STATEMENTS: usize = 256;

#[derive(Debug)]
pub(crate) struct Own {
    work: mpsc::Sender<(Vec<Request>, oneshot::Sender<Outcome>)>,
    ended: oneshot::Receiver<()>,
}

impl Own {
    /// Starts the thread and opens its connection. It ends, and closes the connection, when this value is dropped.
    pub(crate) async fn start(core: Arc<Core>, options: OwnOptions, open: Open) -> Result<Self, StateError> {
        let (first, opened) = oneshot::channel();
        let own = Self::spawn(core, options, open, Some(first))?;
        opened.await.map_err(|_| gone())??;
        Ok(own)
    }

    /// Starts the thread, which opens its connection with the first group.
    pub(crate) fn start_lazily(core: Arc<Core>, options: OwnOptions, open: Open) -> Result<Self, StateError> {
        Self::spawn(core, options, open, None)
    }

    fn spawn(
        core: Arc<Core>,
        options: OwnOptions,
        open: Open,
        first: Option<oneshot::Sender<Result<(), DbError>>>,
    ) -> Result<Self, StateError> {
        let (work, queue) = mpsc::channel::<(Vec<Request>, oneshot::Sender<Outcome>)>();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("queuert-sqlite".to_owned());
        let started = thread.spawn(move || {
            // Dropped last, after the connection.
            let _open = open;
            let mut runner = Runner {
                core,
                logs: Logs::beside(&options.database),
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
            for (group, reply) in queue {
                // A panic takes the group with it, whose replies tell of the loss, and the connection, which undoes what
                // was open. The thread goes on.
                if let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| runner.run(group))) {
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

    /// Runs a group in one transaction. Dropped meanwhile, it still runs, entirely or not at all.
    pub(crate) async fn run(&self, group: Vec<Request>) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        if let Err(mpsc::SendError((group, _))) = self.work.send((group, reply)) {
            return Outcome::Failed(group, gone());
        }
        // Whoever waits for an operation that goes down with the thread is told by the loss of its reply.
        outcome.await.unwrap_or(Outcome::Told)
    }

    /// Ends the thread and waits until its connection is closed.
    pub(crate) async fn close(self) {
        drop(self.work);
        let _ = self.ended.await;
    }
}

fn gone() -> StateError {
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
    core: Arc<Core>,
    options: OwnOptions,
    /// `None` after a failure that leaves its state in doubt.
    connection: Option<Connection>,
    /// As the connection has found them.
    logs: Logs,
}

impl Runner {
    fn run(&mut self, mut group: Vec<Request>) -> Outcome {
        let kept = self.connection.take();
        // A connection to another file at the path would take the log of the old one for that file's, and write it into it.
        if kept.is_none()
            && let Err(moved) = self.core.check_file()
        {
            return Outcome::Failed(group, moved);
        }
        let mut connection = match kept.map_or_else(|| self.open(), Ok) {
            Ok(connection) => connection,
            Err(error) => {
                return match self.core.check_file() {
                    Ok(()) => refused(group, error),
                    // Which is why it cannot be opened.
                    Err(moved) => Outcome::Failed(group, moved),
                };
            }
        };
        if let Err(error) = execute(&connection, "BEGIN IMMEDIATE") {
            self.keep(connection);
            return refused(group, error.into());
        }
        let news = group.iter().any(Request::is_news);
        let mut answers = Vec::with_capacity(group.len());
        // Nothing on this kind of connection ever waits, so the first poll is the last.
        let ran = run_all(&self.core, &mut Db::Own(&mut connection), &mut group, &mut answers).now_or_never();
        // Before the commit: nothing is written to a file that no other program finds.
        if let Err(error) = self.check_files() {
            self.keep(connection);
            let all = answers.into_iter().map(Answer::into_request).chain(group);
            all.for_each(|request| request.fail(copy(&error)));
            return Outcome::Told;
        }
        if let Err(error) = ran.unwrap_or_else(|| Err(stuck())) {
            self.keep(connection);
            let again = answers.into_iter().map(Answer::into_request).chain(group);
            return Outcome::Failed(again.collect(), error);
        }
        match execute(&connection, "COMMIT") {
            Ok(()) => {
                if news {
                    self.core.committed();
                }
                self.connection = Some(connection);
                answers.into_iter().for_each(Answer::send);
            }
            Err(error) => {
                self.keep(connection);
                let error = DbError::from(error);
                // Rows of one of them break a constraint of the application's. Nothing has been written, and who it is
                // shows when they run alone.
                if error.is_constraint() {
                    return Outcome::Failed(answers.into_iter().map(Answer::into_request).collect(), error.into());
                }
                let error = StateError::from(error);
                answers.into_iter().for_each(|answer| answer.fail(copy(&error)));
            }
        }
        Outcome::Told
    }

    fn check_files(&mut self) -> Result<(), StateError> {
        self.core.check_file()?;
        self.logs.check()
    }

    fn open(&mut self) -> Result<Connection, DbError> {
        self.logs.forget();
        // Those of sqlx.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
        let connection = Connection::open_with_flags(&self.options.path, flags)?;
        connection.busy_timeout(self.options.busy_timeout)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        for (name, value) in &self.options.pragmas {
            connection.pragma_update(None, name, value)?;
        }
        Ok(connection)
    }

    /// Rolls back what is open and keeps the connection, unless that fails.
    fn keep(&mut self, connection: Connection) {
        if connection.is_autocommit() || execute(&connection, "ROLLBACK").is_ok() {
            self.connection = Some(connection);
        }
    }
}

/// The answer to a group that has not begun.
fn refused(group: Vec<Request>, error: DbError) -> Outcome {
    match error.is_busy() {
        true => Outcome::Busy(group, error),
        false => Outcome::Failed(group, error.into()),
    }
}

fn execute(connection: &Connection, text: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(text)?.execute(()).map(drop)
}
