//! The one writer of a file: a task with a queue in front.
//!
//! Operations wait in the order in which they came. Those without a transaction of the caller's are taken together and
//! share one `BEGIN IMMEDIATE .. COMMIT`, which costs one flush to disk however many they are. A caller's transaction
//! takes its turn in the same queue, on a connection of sqlx that it has until it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use queuert::{StateError, StateErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteTransactionManager};
use sqlx::{Connection, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::core::Core;
use crate::db::Db;
use crate::error::{copy, is_busy, translate};
use crate::group::{Answer, Reply, Request, run_all};
use crate::own::{Outcome, Own};
use crate::transaction::{Returned, SqliteTransaction, end};

/// The most operations in one transaction: beyond it the flush is paid for, and only latency grows.
const GROUP: usize = 256;

/// The longest pause before the lock of another process is asked for again. Short, because SQLite keeps no queue:
/// whoever asks more often gets it sooner.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

struct Waiting {
    request: Request,
    since: Instant,
}

pub(crate) struct Writer {
    core: Arc<Core>,
    /// Runs the groups; `None` where only sqlx can open the file, or where it is the connection itself.
    own: Option<Own>,
    options: SqliteConnectOptions,
    /// Lent to transactions. `None` after a failure that leaves its state in doubt; opened again when needed.
    connection: Option<SqliteConnection>,
    /// A database in memory is its connection: it must never be closed.
    in_memory: bool,
    lock_timeout: Duration,
    queue: mpsc::UnboundedReceiver<(Request, Instant)>,
    waiting: VecDeque<Waiting>,
}

/// The other end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::UnboundedSender<(Request, Instant)>);

impl Queue {
    /// Puts a request into the queue and waits for its answer. Dropped meanwhile, the request still runs, entirely or
    /// not at all.
    pub(crate) async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, StateError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send((request(reply), Instant::now()));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Lets the writer finish what waits, and close the file.
    pub(crate) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send((Request::Close(reply), Instant::now()));
        let _ = answer.await;
    }
}

/// Pauses before the lock is asked for again, each time for longer.
async fn rest(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

fn closed() -> StateError {
    StateError::new(
        StateErrorKind::Transient,
        "the store has been closed, or the runtime on which it was opened has ended; open it again",
    )
}

impl Writer {
    /// Starts the task. It ends when the last handle has gone.
    pub(crate) fn start(
        core: Arc<Core>,
        own: Option<Own>,
        options: SqliteConnectOptions,
        connection: SqliteConnection,
        in_memory: bool,
        lock_timeout: Duration,
    ) -> Queue {
        let (sender, queue) = mpsc::unbounded_channel();
        let writer = Self {
            core,
            own,
            options,
            connection: Some(connection),
            in_memory,
            lock_timeout,
            queue,
            waiting: VecDeque::new(),
        };
        tokio::spawn(writer.run());
        Queue(sender)
    }

    async fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                match self.queue.recv().await {
                    Some((request, since)) => self.waiting.push_back(Waiting { request, since }),
                    None => break,
                }
            }
            self.take_in();
            let first = self.waiting.pop_front().map(|waiting| waiting.request);
            match first {
                Some(Request::Begin(reply)) => self.lend(reply).await,
                Some(Request::Close(reply)) => {
                    self.queue.close();
                    self.disconnect().await;
                    let _ = reply.send(());
                    return;
                }
                Some(first) => self.run_group(first).await,
                None => {}
            }
        }
        self.disconnect().await;
    }

    /// Moves what has arrived into the line.
    fn take_in(&mut self) {
        while let Ok((request, since)) = self.queue.try_recv() {
            self.waiting.push_back(Waiting { request, since });
        }
    }

    async fn disconnect(&mut self) {
        if let Some(own) = self.own.take() {
            own.close().await;
        }
        if let Some(connection) = self.connection.take() {
            let _ = connection.close().await;
        }
    }

    async fn connection(&mut self) -> Result<SqliteConnection, StateError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => SqliteConnection::connect_with(&self.options).await.map_err(translate),
        }
    }

    /// Rolls back what is open and keeps the connection, unless that fails.
    async fn recover(&mut self, mut connection: SqliteConnection) {
        if end(&mut connection).await.is_ok() || self.in_memory {
            self.connection = Some(connection);
        }
    }

    /// Takes the write lock, waiting for other processes.
    async fn begin(&mut self) -> Result<SqliteConnection, StateError> {
        let deadline = Instant::now() + self.lock_timeout;
        let mut pause = SHORTEST_PAUSE;
        let mut connection = self.connection().await?;
        loop {
            let begin = SqliteTransactionManager::begin(&mut connection, Some("BEGIN IMMEDIATE".into_sql_str()));
            let error = match begin.await {
                Ok(()) => return Ok(connection),
                Err(error) => error,
            };
            let busy = is_busy(&error);
            if busy && Instant::now() < deadline {
                rest(&mut pause).await;
                continue;
            }
            self.recover(connection).await;
            return Err(match busy {
                false => translate(error),
                true => self.locked().with_source(error),
            });
        }
    }

    fn locked(&self) -> StateError {
        StateError::new(
            StateErrorKind::Transient,
            format!(
                "the database has been locked by another connection for {:?}; look for a process that keeps a \
                 transaction open on this file (`fuser` or `lsof` on it and its `-wal` name them)",
                self.lock_timeout
            ),
        )
    }

    /// Runs operations in one transaction. If one fails, all are undone and run again one by one: only the one at
    /// fault is told of it. That is cheaper than a savepoint around each, which would cost every group twice as many
    /// statements.
    ///
    /// Whoever has come by the time the lock is there rides along.
    async fn run_group(&mut self, first: Request) {
        let mut group = vec![first];
        if let Some(own) = self.own.take() {
            self.ride_along(&mut group);
            self.run_on(&own, group).await;
            self.own = Some(own);
            return;
        }
        match self.begin().await {
            Ok(connection) => {
                self.ride_along(&mut group);
                self.run_in(connection, group).await;
            }
            Err(error) => group.into_iter().for_each(|request| request.fail(copy(&error))),
        }
    }

    /// Adds to a group who has come meanwhile, up to the next transaction of a caller's.
    fn ride_along(&mut self, group: &mut Vec<Request>) {
        self.take_in();
        while group.len() < GROUP && self.waiting.front().is_some_and(|next| next.request.groups()) {
            group.extend(self.waiting.pop_front().map(|waiting| waiting.request));
        }
    }

    /// Runs operations on the thread, waiting for other processes.
    async fn run_on(&mut self, own: &Own, mut group: Vec<Request>) {
        let deadline = Instant::now() + self.lock_timeout;
        let mut pause = SHORTEST_PAUSE;
        loop {
            match own.run(group).await {
                Outcome::Told => return,
                Outcome::Busy(waiting, _) if Instant::now() < deadline => {
                    group = waiting;
                    rest(&mut pause).await;
                    self.ride_along(&mut group);
                }
                Outcome::Busy(waiting, error) => {
                    let error = self.locked().with_source(StateError::from(error));
                    return waiting.into_iter().for_each(|request| request.fail(copy(&error)));
                }
                Outcome::Failed(failed, error) if failed.len() == 1 => {
                    return failed.into_iter().for_each(|request| request.fail(copy(&error)));
                }
                Outcome::Failed(failed, _) => {
                    for request in failed {
                        Box::pin(self.run_on(own, vec![request])).await;
                    }
                    return;
                }
            }
        }
    }

    /// Runs operations in the transaction that has begun on the connection.
    async fn run_in(&mut self, mut connection: SqliteConnection, mut group: Vec<Request>) {
        let several = group.len() > 1;
        let news = group.iter().any(Request::is_news);
        let mut answers = Vec::with_capacity(group.len());
        match run_all(&self.core, &mut Db::Lent(&mut connection), &mut group, &mut answers).await {
            Ok(()) => match SqliteTransactionManager::commit(&mut connection).await {
                Ok(()) => {
                    if news {
                        self.core.committed();
                    }
                    self.connection = Some(connection);
                    answers.into_iter().for_each(Answer::send);
                }
                Err(error) => {
                    self.recover(connection).await;
                    let error = translate(error);
                    group.into_iter().for_each(|request| request.fail(copy(&error)));
                    answers.into_iter().for_each(|answer| answer.fail(copy(&error)));
                }
            },
            Err(error) => {
                self.recover(connection).await;
                let again = answers.into_iter().map(Answer::into_request).chain(group);
                for request in again {
                    match several {
                        true => self.run_alone(request).await,
                        false => request.fail(copy(&error)),
                    }
                }
            }
        }
    }

    async fn run_alone(&mut self, request: Request) {
        match self.begin().await {
            Ok(connection) => Box::pin(self.run_in(connection, vec![request])).await,
            Err(error) => request.fail(error),
        }
    }

    /// Lends the connection to a transaction of the caller's until it ends.
    async fn lend(&mut self, reply: Reply<SqliteTransaction>) {
        if reply.is_closed() {
            return;
        }
        let connection = match self.begin().await {
            Ok(connection) => connection,
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        let (home, mut returned) = oneshot::channel();
        // If nobody waits for it any more, the transaction is dropped here and the connection is back at once.
        let _ = reply.send(Ok(SqliteTransaction::new(connection, home)));
        let since = Instant::now();
        let back = loop {
            let timeout = self.next_timeout(since);
            tokio::select! {
                biased;
                back = &mut returned => break back,
                arrived = self.queue.recv(), if !self.queue.is_closed() => {
                    if let Some((request, since)) = arrived {
                        self.waiting.push_back(Waiting { request, since });
                    }
                }
                () = tokio::time::sleep_until(timeout) => self.time_out(since),
            }
        };
        // A connection that never comes home was leaked with its transaction; the next begin opens another one and
        // finds the file locked, which says so.
        let Ok(Returned {
            mut connection,
            dirty,
            committed,
        }) = back
        else {
            return;
        };
        if committed {
            self.core.committed();
        }
        if dirty && end(&mut connection).await.is_err() && !self.in_memory {
            return;
        }
        self.connection = Some(connection);
    }

    /// When the first in line has waited too long for a transaction that began at `since`.
    fn next_timeout(&self, since: Instant) -> Instant {
        let first = self.waiting.front().map_or_else(Instant::now, |waiting| waiting.since);
        since.max(first) + self.lock_timeout
    }

    fn time_out(&mut self, since: Instant) {
        let now = Instant::now();
        while let Some(first) = self.waiting.front()
            && now >= since.max(first.since) + self.lock_timeout
        {
            let Some(waiting) = self.waiting.pop_front() else {
                return;
            };
            waiting.request.fail(StateError::new(
                StateErrorKind::Transient,
                format!(
                    "a transaction of this process has been open for {:?} and keeps all other writers waiting; keep \
                     transactions short, and run what belongs into one with `.within(&mut tx)`",
                    now.saturating_duration_since(since)
                ),
            ));
        }
    }
}
