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
use crate::error::{DbError, copy, is_busy, translate};
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

    /// Lets the writer finish what waits, and close the file. It does so whether or not the future is awaited.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + use<> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send((Request::Close(reply), Instant::now()));
        async move {
            let _ = answer.await;
        }
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
        "the store has been closed, or the runtime on which it was opened has ended (open it again), or the operation has \
         panicked",
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
            let Some(Waiting { request, since }) = self.waiting.pop_front() else {
                continue;
            };
            match request {
                abandoned if abandoned.is_abandoned() => {}
                Request::Begin(reply) => self.lend(reply, since).await,
                Request::Close(reply) => {
                    self.queue.close();
                    self.disconnect().await;
                    let _ = reply.send(());
                    return;
                }
                request => self.run_group(Waiting { request, since }).await,
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

    /// Rolls back what is open and keeps the connection, unless that fails.
    async fn recover(&mut self, mut connection: SqliteConnection) {
        if end(&mut connection).await.is_ok() || self.in_memory {
            self.connection = Some(connection);
        }
    }

    /// Takes the write lock for one who has waited since then, waiting for other processes.
    async fn begin(&mut self, since: Instant) -> Result<SqliteConnection, StateError> {
        let deadline = since + self.lock_timeout;
        let mut pause = SHORTEST_PAUSE;
        loop {
            let error = match self.try_begin().await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if !is_busy(&error) {
                return Err(translate(error));
            }
            if Instant::now() >= deadline {
                return Err(self.locked().with_source(error));
            }
            rest(&mut pause).await;
        }
    }

    async fn try_begin(&mut self) -> Result<SqliteConnection, sqlx::Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => SqliteConnection::connect_with(&self.options).await?,
        };
        let begin = SqliteTransactionManager::begin(&mut connection, Some("BEGIN IMMEDIATE".into_sql_str()));
        match begin.await {
            Ok(()) => Ok(connection),
            Err(error) => {
                self.recover(connection).await;
                Err(error)
            }
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
    async fn run_group(&mut self, first: Waiting) {
        if let Some(own) = self.own.take() {
            // Whoever is about to ask does so first: a worker asks for the next jobs while the ends of others are on
            // their way, and both belong into one transaction.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            let mut group = vec![first];
            self.ride_along(&mut group);
            self.run_on(&own, group).await;
            self.own = Some(own);
            return;
        }
        match self.begin(first.since).await {
            Ok(connection) => {
                let mut group = vec![first];
                self.ride_along(&mut group);
                self.run_in(connection, group.into_iter().map(|waiting| waiting.request).collect())
                    .await;
            }
            Err(error) => first.request.fail(error),
        }
    }

    /// Adds to a group who has come meanwhile, up to the next transaction of a caller's.
    fn ride_along(&mut self, group: &mut Vec<Waiting>) {
        self.take_in();
        while group.len() < GROUP
            && let Some(next) = self.waiting.pop_front_if(|next| next.request.groups())
        {
            if !next.request.is_abandoned() {
                group.push(next);
            }
        }
    }

    /// Runs operations on the thread, waiting for other processes.
    async fn run_on(&mut self, own: &Own, group: Vec<Waiting>) {
        let (mut since, mut group): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|waiting| (waiting.since, waiting.request))
            .unzip();
        let mut pause = SHORTEST_PAUSE;
        while !group.is_empty() {
            match own.run(group).await {
                Outcome::Told => return,
                // Each waits for as long as it may; who comes meanwhile waits for the next turn.
                Outcome::Busy(waiting, error) => {
                    let error = self.locked().with_source(StateError::from(error));
                    let now = Instant::now();
                    let (mut still_since, mut still) = (Vec::new(), Vec::new());
                    for (since, request) in since.into_iter().zip(waiting) {
                        if now >= since + self.lock_timeout {
                            request.fail(copy(&error));
                        } else if !request.is_abandoned() {
                            still_since.push(since);
                            still.push(request);
                        }
                    }
                    (since, group) = (still_since, still);
                    rest(&mut pause).await;
                }
                Outcome::Failed(failed, error) if failed.len() == 1 => {
                    return failed.into_iter().for_each(|request| request.fail(copy(&error)));
                }
                Outcome::Failed(failed, _) => {
                    for request in failed {
                        let since = Instant::now();
                        Box::pin(self.run_on(own, vec![Waiting { request, since }])).await;
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
                    let error = DbError::from(error);
                    let constraint = error.is_constraint();
                    let error = StateError::from(error);
                    let all = answers.into_iter().map(Answer::into_request);
                    match several && constraint {
                        // Rows of one of them break a constraint of the application's.
                        true => self.run_singly(all.collect()).await,
                        false => all.for_each(|request| request.fail(copy(&error))),
                    }
                }
            },
            Err(error) => {
                self.recover(connection).await;
                let all = answers.into_iter().map(Answer::into_request).chain(group);
                match several {
                    true => self.run_singly(all.collect()).await,
                    false => all.for_each(|request| request.fail(copy(&error))),
                }
            }
        }
    }

    /// Runs operations again, each in a transaction of its own.
    async fn run_singly(&mut self, requests: Vec<Request>) {
        for request in requests {
            match self.begin(Instant::now()).await {
                Ok(connection) => Box::pin(self.run_in(connection, vec![request])).await,
                Err(error) => request.fail(error),
            }
        }
    }

    /// Lends the connection to a transaction of the caller's until it ends.
    async fn lend(&mut self, reply: Reply<SqliteTransaction>, since: Instant) {
        let connection = match self.begin(since).await {
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
        let first = match self.waiting.front() {
            // To close takes as long as what comes before it.
            None
            | Some(Waiting {
                request: Request::Close(_),
                ..
            }) => Instant::now(),
            Some(waiting) => waiting.since,
        };
        since.max(first) + self.lock_timeout
    }

    fn time_out(&mut self, since: Instant) {
        let now = Instant::now();
        while let Some(first) = self.waiting.front()
            && !matches!(first.request, Request::Close(_))
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
