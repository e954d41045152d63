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

use crate::core::Core;
use crate::db::Db;
use crate::error::{DbError, copy};
use crate::group::{Answer, Request, run_all};

/// How to open the connection.
#[derive(Clone, Debug)]
pub(crate) struct OwnOptions {
    pub(crate) path: PathBuf,
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
    pub(crate) async fn start(core: Arc<Core>, options: OwnOptions) -> Result<Self, StateError> {
        let (work, queue) = mpsc::channel::<(Vec<Request>, oneshot::Sender<Outcome>)>();
        let (end, ended) = oneshot::channel();
        let (open, opened) = oneshot::channel();
        let thread = std::thread::Builder::new().name("queuert-sqlite".to_owned());
        let started = thread.spawn(move || {
            let mut runner = Runner {
                core,
                options,
                connection: None,
            };
            let first = runner.open().map(|connection| runner.connection = Some(connection));
            let failed = first.is_err();
            if open.send(first).is_err() || failed {
                return;
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
            StateError::new(StateErrorKind::Transient, "no thread could be started for the writer").with_source(error)
        })?;
        opened.await.map_err(|_| gone())??;
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
}

impl Runner {
    fn run(&mut self, mut group: Vec<Request>) -> Outcome {
        let mut connection = match self.connection.take().map_or_else(|| self.open(), Ok) {
            Ok(connection) => connection,
            Err(error) => return refused(group, error),
        };
        if let Err(error) = execute(&connection, "BEGIN IMMEDIATE") {
            self.keep(connection);
            return refused(group, error.into());
        }
        let news = group.iter().any(Request::is_news);
        let mut answers = Vec::with_capacity(group.len());
        // Nothing on this kind of connection ever waits, so the first poll is the last.
        let ran = run_all(&self.core, &mut Db::Own(&mut connection), &mut group, &mut answers).now_or_never();
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

    fn open(&self) -> Result<Connection, DbError> {
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
