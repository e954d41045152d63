//! The writer of a file: a task that takes requests from a queue ([`queue`]).
//!
//! Requests wait in the order of their arrival. Operations outside of a caller's transaction are taken together and share one
//! transaction ([`batch`]), which costs one flush to disk for any number of them. They run on a thread of their own
//! ([`thread`]). A caller's transaction takes its turn in the same queue, and has a connection of sqlx until it ends.

pub(crate) mod batch;
pub(crate) mod queue;
pub(crate) mod thread;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use queuert::{StateError, StateErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteTransactionManager};
use sqlx::{Connection as _, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::connection::connections::OpenConnection;
use crate::connection::hidden::Hidden;
use crate::connection::lendable::{Cleaning, Lendable};
use crate::error::{StatementError, copy, is_busy, translate};
use crate::store::Store;
use crate::transaction::{Offer, Returned, SqliteTransaction, end, offer};
use crate::writer::batch::{Executed, Reply, Request, run_all};
use crate::writer::thread::{BatchOutcome, ThreadOptions, WriterThread};

/// The most operations in one transaction. More would not save much of the flush, and would add latency.
const LARGEST_BATCH: usize = 256;

/// The longest pause before the writer tries again to take the lock that another process has. Short, because SQLite has no queue:
/// a process that tries more often gets the lock sooner.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

struct Waiting {
    request: Request,
    since: Instant,
}

/// The settings of writers.
#[derive(Debug)]
pub(crate) struct WriterOptions {
    pub(crate) store: Arc<Store>,
    /// For the thread that runs batches; `None` if only sqlx can open the file.
    pub(crate) thread: Option<ThreadOptions>,
    pub(crate) connect: Hidden<SqliteConnectOptions>,
    /// The path of the file as SQLite has resolved it; `None` for a database in memory, which would be lost if its connection
    /// were closed.
    pub(crate) database: Option<PathBuf>,
    pub(crate) lock_timeout: Duration,
}

pub(crate) struct Writer {
    store: Arc<Store>,
    /// Lets the writer open connections for requests that were made before the store was closed.
    open: OpenConnection,
    /// Runs the batches; started by the first one.
    thread: Option<WriterThread>,
    thread_options: Option<ThreadOptions>,
    connect: Hidden<SqliteConnectOptions>,
    /// The connection for callers' transactions. `None` after a failure that leaves its state in doubt; opened when needed.
    connection: Option<Lendable>,
    /// The same connection while it is checked for what the last caller has left behind.
    cleaning: Option<Cleaning>,
    /// The path of the file; `None` for a database in memory.
    database: Option<PathBuf>,
    lock_timeout: Duration,
    queue: mpsc::UnboundedReceiver<(Request, Instant)>,
    waiting: VecDeque<Waiting>,
}

/// Waits before the lock is tried again, each time for longer.
async fn pause_before_retry(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

impl Writer {
    pub(crate) fn new(
        options: &WriterOptions,
        open: OpenConnection,
        thread: Option<WriterThread>,
        connection: Option<Lendable>,
        queue: mpsc::UnboundedReceiver<(Request, Instant)>,
    ) -> Self {
        Self {
            store: Arc::clone(&options.store),
            open,
            thread,
            thread_options: options.thread.clone(),
            connect: options.connect.clone(),
            connection,
            cleaning: None,
            database: options.database.clone(),
            lock_timeout: options.lock_timeout,
            queue,
            waiting: VecDeque::new(),
        }
    }

    /// Ends when the last handle is dropped, or the store is closed.
    pub(crate) async fn run(mut self) {
        loop {
            let postponed = self.store.postponed.take();
            if !postponed.is_empty() {
                let request = Request::Renew(postponed, None);
                let since = Instant::now();
                self.waiting.push_front(Waiting { request, since });
            }
            if self.waiting.is_empty() {
                match self.queue.recv().await {
                    Some((request, since)) => self.waiting.push_back(Waiting { request, since }),
                    None => break,
                }
            }
            self.receive();
            let Some(Waiting { request, since }) = self.waiting.pop_front() else {
                continue;
            };
            match request {
                abandoned if abandoned.is_abandoned() => {}
                Request::Begin(patience, reply) => self.lend(patience, reply, since).await,
                Request::Close(reply) => {
                    self.queue.close();
                    self.disconnect().await;
                    let _ = reply.send(());
                    return;
                }
                request => self.run_batch(Waiting { request, since }).await,
            }
        }
        self.disconnect().await;
    }

    /// Moves the requests that have arrived to those that wait.
    fn receive(&mut self) {
        while let Ok((request, since)) = self.queue.try_recv() {
            self.waiting.push_back(Waiting { request, since });
        }
    }

    /// Answers the renewals that wait while another transaction has the lock: one of another process, or of this one, perhaps
    /// that of the attempt whose lease is to be extended. No reaper can take the jobs meanwhile.
    fn postpone_renewals(&mut self) {
        self.receive();
        let is_renewal = |waiting: &Waiting| matches!(waiting.request, Request::Renew(..));
        if !self.waiting.iter().any(is_renewal) {
            return;
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            waiting.request.postpone();
            match waiting.request {
                Request::Renew(renewals, _) => self.store.postponed.add(renewals),
                request => self.waiting.push_back(Waiting { request, ..waiting }),
            }
        }
    }

    async fn disconnect(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.close().await;
        }
        if let Some(connection) = self.take_connection().await {
            let _ = connection.into_inner().close().await;
        }
    }

    /// Rolls back the open transaction and keeps the connection, unless that fails.
    async fn recover(&mut self, mut connection: Lendable) {
        if end(&mut connection).await.is_ok() || self.database.is_none() {
            self.connection = Some(connection);
        }
    }

    /// Takes the write lock for a request that has waited since then.
    async fn begin_for(&mut self, request: &mut Request, since: Instant) -> Result<Lendable, StateError> {
        self.begin(since, || request.postpone()).await
    }

    /// Takes the write lock for a caller that has waited since then. While another process has the lock, tries again until the
    /// caller has waited for `lock_timeout`, and calls `locked` each time.
    async fn begin(&mut self, since: Instant, mut locked: impl FnMut()) -> Result<Lendable, StateError> {
        let deadline = since + self.lock_timeout;
        let mut pause = SHORTEST_PAUSE;
        loop {
            // Before a connection is opened: a connection to another file at the path would take the log of the old file for
            // the log of the new one, and write it into the new file.
            self.store.check_file()?;
            let error = match self.try_begin().await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if !is_busy(&error) {
                // If the file is missing, that is the reason.
                self.store.check_file()?;
                return Err(translate(error));
            }
            locked();
            if Instant::now() >= deadline {
                return Err(self.locked().with_source(error));
            }
            self.postpone_renewals();
            pause_before_retry(&mut pause).await;
        }
    }

    async fn take_connection(&mut self) -> Option<Lendable> {
        match self.cleaning.take() {
            Some(cleaning) => cleaning.await,
            None => self.connection.take(),
        }
    }

    async fn try_begin(&mut self) -> Result<Lendable, sqlx::Error> {
        let mut connection = match self.take_connection().await {
            Some(connection) => connection,
            None => {
                let connection = SqliteConnection::connect_with(&self.connect).await?;
                Lendable::new(connection, self.open.clone(), self.database.as_deref()).await?
            }
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

    /// Runs operations in one transaction. If one fails, all are rolled back and run again one by one, so that only the caller
    /// of the one that fails gets the error. A savepoint around each operation would be dearer: it would double the statements
    /// of every batch.
    async fn run_batch(&mut self, mut first: Waiting) {
        let thread = match self.take_thread() {
            Ok(thread) => thread,
            Err(error) => return first.request.fail(error),
        };
        if let Some(thread) = thread {
            // Lets other tasks of the runtime send their requests first: a worker claims jobs while the settlements of
            // others are on their way, and both belong into one transaction.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            let mut batch = vec![first];
            self.add_waiting(&mut batch);
            self.run_on(&thread, batch).await;
            self.thread = Some(thread);
            return;
        }
        match self.begin_for(&mut first.request, first.since).await {
            Ok(connection) => {
                let mut batch = vec![first];
                self.add_waiting(&mut batch);
                self.run_in(connection, batch.into_iter().map(|waiting| waiting.request).collect())
                    .await;
            }
            Err(error) => first.request.fail(error),
        }
    }

    /// The thread, started if necessary; `None` if only sqlx can open the file.
    fn take_thread(&mut self) -> Result<Option<WriterThread>, StateError> {
        match (self.thread.take(), &self.thread_options) {
            (Some(thread), _) => Ok(Some(thread)),
            (None, Some(options)) => {
                WriterThread::start_lazily(Arc::clone(&self.store), options.clone(), self.open.clone()).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// Fails if the connection would write to a file that is not at the path.
    fn check_files(&self, connection: &mut Lendable) -> Result<(), StateError> {
        self.store.check_file()?;
        connection.check_logs()
    }

    /// Adds the operations that wait to a batch, up to the next transaction of a caller.
    fn add_waiting(&mut self, batch: &mut Vec<Waiting>) {
        self.receive();
        while batch.len() < LARGEST_BATCH
            && let Some(next) = self.waiting.pop_front_if(|next| next.request.may_share())
        {
            if !next.request.is_abandoned() {
                batch.push(next);
            }
        }
    }

    /// Runs operations on the thread. Tries again while another process has the write lock.
    async fn run_on(&mut self, thread: &WriterThread, batch: Vec<Waiting>) {
        let (mut since, mut batch): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|waiting| (waiting.since, waiting.request))
            .unzip();
        let mut pause = SHORTEST_PAUSE;
        while !batch.is_empty() {
            match thread.run(batch).await {
                BatchOutcome::Answered => return,
                // Each operation waits until its own deadline. Operations that arrive meanwhile wait for the next batch.
                BatchOutcome::Busy(waiting, error) => {
                    let error = self.locked().with_source(StateError::from(error));
                    let now = Instant::now();
                    let (mut still_since, mut still) = (Vec::new(), Vec::new());
                    for (since, mut request) in since.into_iter().zip(waiting) {
                        request.postpone();
                        if now >= since + self.lock_timeout {
                            request.fail(copy(&error));
                        } else if !request.is_abandoned() {
                            still_since.push(since);
                            still.push(request);
                        }
                    }
                    (since, batch) = (still_since, still);
                    self.postpone_renewals();
                    pause_before_retry(&mut pause).await;
                }
                BatchOutcome::Failed(failed, error) if failed.len() == 1 => {
                    return failed.into_iter().for_each(|request| request.fail(copy(&error)));
                }
                BatchOutcome::Failed(failed, _) => {
                    for request in failed {
                        let since = Instant::now();
                        Box::pin(self.run_on(thread, vec![Waiting { request, since }])).await;
                    }
                    return;
                }
            }
        }
    }

    /// Runs operations in the transaction that has begun on the connection.
    async fn run_in(&mut self, mut connection: Lendable, mut batch: Vec<Request>) {
        let several = batch.len() > 1;
        let news = batch.iter().any(Request::is_news);
        let mut executed = Vec::with_capacity(batch.len());
        let ran = run_all(
            &self.store,
            &mut Connection::Sqlx(&mut connection),
            &mut batch,
            &mut executed,
        )
        .await;
        // Before the commit, so that nothing is written to a file that no other program finds.
        if let Err(error) = self.check_files(&mut connection) {
            self.recover(connection).await;
            let all = executed.into_iter().map(Executed::into_request).chain(batch);
            return all.for_each(|request| request.fail(copy(&error)));
        }
        match ran {
            Ok(()) => match SqliteTransactionManager::commit(&mut connection).await {
                Ok(()) => {
                    if news {
                        self.store.committed();
                    }
                    self.connection = Some(connection);
                    executed.into_iter().for_each(Executed::send);
                }
                Err(error) => {
                    self.recover(connection).await;
                    let error = StatementError::from(error);
                    let constraint = error.is_constraint();
                    let error = StateError::from(error);
                    let all = executed.into_iter().map(Executed::into_request);
                    if several && constraint {
                        // Rows of one of them violate a deferred constraint of the application.
                        self.run_singly(all.collect()).await;
                    } else {
                        all.for_each(|request| request.fail(copy(&error)));
                    }
                }
            },
            Err(error) => {
                self.recover(connection).await;
                let all = executed.into_iter().map(Executed::into_request).chain(batch);
                if several {
                    self.run_singly(all.collect()).await;
                } else {
                    all.for_each(|request| request.fail(copy(&error)));
                }
            }
        }
    }

    /// Runs operations again, each in a transaction of its own.
    async fn run_singly(&mut self, requests: Vec<Request>) {
        for mut request in requests {
            match self.begin_for(&mut request, Instant::now()).await {
                Ok(connection) => Box::pin(self.run_in(connection, vec![request])).await,
                Err(error) => request.fail(error),
            }
        }
    }

    /// Lends the connection to a caller's transaction until that ends. If the caller does not accept the transaction in time,
    /// its future is probably not polled: the writer takes the transaction back, and the caller asks again when it is polled.
    async fn lend(&mut self, patience: Duration, reply: Reply<Offer>, since: Instant) {
        let begun = match self.begin(since, || ()).await {
            Ok(mut connection) => match self.check_files(&mut connection) {
                Ok(()) => Ok(connection),
                Err(error) => {
                    self.recover(connection).await;
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        let connection = match begun {
            Ok(connection) => connection,
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        let (return_to, mut returned) = oneshot::channel();
        let (offer, offered) = offer(SqliteTransaction::new(
            connection,
            return_to,
            self.store.connections.lend(),
        ));
        // If the caller does not wait any more, the transaction is dropped here, and the connection comes back at once.
        let _ = reply.send(Ok(offer));
        let since = Instant::now();
        let mut taken_back_at = Some(since + patience);
        let back = loop {
            self.postpone_renewals();
            let timeout = self.next_timeout(since);
            let wake = taken_back_at.map_or(timeout, |at| at.min(timeout));
            tokio::select! {
                biased;
                back = &mut returned => break back,
                arrived = self.queue.recv(), if !self.queue.is_closed() => {
                    if let Some((request, since)) = arrived {
                        self.waiting.push_back(Waiting { request, since });
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if taken_back_at.take_if(|at| Instant::now() >= *at).is_some() {
                        // Dropping the transaction returns its connection.
                        drop(offered.take());
                    }
                    self.time_out(since);
                }
            }
        };
        // If the connection never comes back, the caller has leaked its transaction. The next transaction opens another
        // connection, finds the file locked, and fails with an error that says so.
        self.cleaning = match back {
            Ok(Returned::Ended { cleaning, committed }) => {
                if committed {
                    self.store.committed();
                }
                Some(cleaning)
            }
            Ok(Returned::Dropped {
                mut connection,
                ended_by_caller,
            }) => match end(&mut connection).await {
                Err(_) if self.database.is_some() => None,
                Ok(()) | Err(_) => Some(connection.clean(ended_by_caller)),
            },
            Err(_) => None,
        };
    }

    /// When the first request that waits has waited too long for a transaction that began at `since`.
    fn next_timeout(&self, since: Instant) -> Instant {
        let first = match self.waiting.front() {
            // Closing waits for the requests before it without a limit.
            None
            | Some(Waiting {
                request: Request::Close(_),
                ..
            }) => Instant::now(),
            Some(waiting) => waiting.since,
        };
        since.max(first) + self.lock_timeout
    }

    /// Fails the requests that have waited too long for a transaction that began at `since`.
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
