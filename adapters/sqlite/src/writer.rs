//! The writer of a file: a task with a queue in front, `queue.rs`.
//!
//! Operations wait in the order in which they came. Those without a transaction of the caller's are taken together and
//! share one `BEGIN IMMEDIATE .. COMMIT`, which costs one flush to disk however many they are. A caller's transaction
//! takes its turn in the same queue, on a connection of sqlx that it has until it ends.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use queuert::{StateError, StateErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteTransactionManager};
use sqlx::{Connection, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::connections::Open;
use crate::core::Core;
use crate::db::Db;
use crate::error::{DbError, copy, is_busy, translate};
use crate::group::{Answer, Reply, Request, run_all};
use crate::hidden::Hidden;
use crate::own::{Outcome, Own, OwnOptions};
use crate::transaction::{Cleaning, Lendable, Offer, Returned, SqliteTransaction, end, offer};

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

/// How a writer works, and how it opens what it needs.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) core: Arc<Core>,
    /// Of the connection on a thread of its own; `None` where only sqlx can open the file.
    pub(crate) own: Option<OwnOptions>,
    pub(crate) options: Hidden<SqliteConnectOptions>,
    /// The path of the file as SQLite knows it; `None` for a database in memory, which is its connection: that must never
    /// be closed.
    pub(crate) database: Option<PathBuf>,
    pub(crate) lock_timeout: Duration,
}

pub(crate) struct Writer {
    core: Arc<Core>,
    /// What it was asked before the store was closed is still done, on connections that are opened for it.
    open: Open,
    /// Runs the groups; started when it is needed.
    own: Option<Own>,
    own_options: Option<OwnOptions>,
    options: Hidden<SqliteConnectOptions>,
    /// Lent to transactions. `None` after a failure that leaves its state in doubt; opened when needed.
    connection: Option<Lendable>,
    /// The same while SQLite looks for what the last caller has left on it.
    cleaning: Option<Cleaning>,
    /// The path of the file; `None` for a database in memory.
    database: Option<PathBuf>,
    lock_timeout: Duration,
    queue: mpsc::UnboundedReceiver<(Request, Instant)>,
    waiting: VecDeque<Waiting>,
}

/// Pauses before the lock is asked for again, each time for longer.
async fn rest(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

impl Writer {
    pub(crate) fn new(
        plan: &Plan,
        open: Open,
        own: Option<Own>,
        connection: Option<Lendable>,
        queue: mpsc::UnboundedReceiver<(Request, Instant)>,
    ) -> Self {
        Self {
            core: Arc::clone(&plan.core),
            open,
            own,
            own_options: plan.own.clone(),
            options: plan.options.clone(),
            connection,
            cleaning: None,
            database: plan.database.clone(),
            lock_timeout: plan.lock_timeout,
            queue,
            waiting: VecDeque::new(),
        }
    }

    /// Ends when the last handle has gone, or the store is closed.
    pub(crate) async fn run(mut self) {
        loop {
            let put_off = self.core.put_off.take();
            if !put_off.is_empty() {
                let request = Request::Renew(put_off, None);
                let since = Instant::now();
                self.waiting.push_front(Waiting { request, since });
            }
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
                Request::Begin(patience, reply) => self.lend(patience, reply, since).await,
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

    /// Answers the renewals that wait while somebody has the lock: a transaction of this process, which may be that of the
    /// very attempt whose lease is to be extended, or another process. Nobody can take a job meanwhile.
    fn put_off_renewals(&mut self) {
        self.take_in();
        let is_renewal = |waiting: &Waiting| matches!(waiting.request, Request::Renew(..));
        if !self.waiting.iter().any(is_renewal) {
            return;
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            waiting.request.put_off();
            match waiting.request {
                Request::Renew(renewals, _) => self.core.put_off.add(renewals),
                request => self.waiting.push_back(Waiting { request, ..waiting }),
            }
        }
    }

    async fn disconnect(&mut self) {
        if let Some(own) = self.own.take() {
            own.close().await;
        }
        if let Some(connection) = self.take_connection().await {
            let _ = connection.into_inner().close().await;
        }
    }

    /// Rolls back what is open and keeps the connection, unless that fails.
    async fn recover(&mut self, mut connection: Lendable) {
        if end(&mut connection).await.is_ok() || self.database.is_none() {
            self.connection = Some(connection);
        }
    }

    /// Takes the write lock for a request that has waited since then, waiting for other processes.
    async fn begin_for(&mut self, request: &mut Request, since: Instant) -> Result<Lendable, StateError> {
        self.begin(since, || request.put_off()).await
    }

    /// Takes the write lock, waiting for other processes until the patience of one who has waited since then is over. Calls
    /// the function whenever another process has the lock.
    async fn begin(&mut self, since: Instant, mut locked: impl FnMut()) -> Result<Lendable, StateError> {
        let deadline = since + self.lock_timeout;
        let mut pause = SHORTEST_PAUSE;
        loop {
            // Before a connection is opened: one to another file at the path would take the log of the old one for that
            // file's, and write it into it.
            self.core.check_file()?;
            let error = match self.try_begin().await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if !is_busy(&error) {
                // A file that is not there cannot be opened either.
                self.core.check_file()?;
                return Err(translate(error));
            }
            locked();
            if Instant::now() >= deadline {
                return Err(self.locked().with_source(error));
            }
            self.put_off_renewals();
            rest(&mut pause).await;
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
                let connection = SqliteConnection::connect_with(&self.options).await?;
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

    /// Runs operations in one transaction. If one fails, all are undone and run again one by one: only the one at
    /// fault is told of it. That is cheaper than a savepoint around each, which would cost every group twice as many
    /// statements.
    async fn run_group(&mut self, mut first: Waiting) {
        let own = match self.take_own() {
            Ok(own) => own,
            Err(error) => return first.request.fail(error),
        };
        if let Some(own) = own {
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
        match self.begin_for(&mut first.request, first.since).await {
            Ok(connection) => {
                let mut group = vec![first];
                self.ride_along(&mut group);
                self.run_in(connection, group.into_iter().map(|waiting| waiting.request).collect())
                    .await;
            }
            Err(error) => first.request.fail(error),
        }
    }

    /// The thread, which is started if it is not there; `None` where only sqlx can open the file.
    fn take_own(&mut self) -> Result<Option<Own>, StateError> {
        match (self.own.take(), &self.own_options) {
            (Some(own), _) => Ok(Some(own)),
            (None, Some(options)) => {
                Own::start_lazily(Arc::clone(&self.core), options.clone(), self.open.clone()).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// Fails if what is about to be written on the lent connection would go to a file that is not at the path.
    fn check_files(&self, connection: &mut Lendable) -> Result<(), StateError> {
        self.core.check_file()?;
        connection.check_logs()
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
                    for (since, mut request) in since.into_iter().zip(waiting) {
                        request.put_off();
                        if now >= since + self.lock_timeout {
                            request.fail(copy(&error));
                        } else if !request.is_abandoned() {
                            still_since.push(since);
                            still.push(request);
                        }
                    }
                    (since, group) = (still_since, still);
                    self.put_off_renewals();
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
    async fn run_in(&mut self, mut connection: Lendable, mut group: Vec<Request>) {
        let several = group.len() > 1;
        let news = group.iter().any(Request::is_news);
        let mut answers = Vec::with_capacity(group.len());
        let ran = run_all(&self.core, &mut Db::Lent(&mut connection), &mut group, &mut answers).await;
        // Before the commit: nothing is written to a file that no other program finds.
        if let Err(error) = self.check_files(&mut connection) {
            self.recover(connection).await;
            let all = answers.into_iter().map(Answer::into_request).chain(group);
            return all.for_each(|request| request.fail(copy(&error)));
        }
        match ran {
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
        for mut request in requests {
            match self.begin_for(&mut request, Instant::now()).await {
                Ok(connection) => Box::pin(self.run_in(connection, vec![request])).await,
                Err(error) => request.fail(error),
            }
        }
    }

    /// Lends the connection to a transaction of the caller's until it ends. A caller that does not come for it in time is
    /// taken for one that nobody polls: the transaction is taken back, and the caller asks again when it comes.
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
        let (home, mut returned) = oneshot::channel();
        let (offer, offered) = offer(SqliteTransaction::new(connection, home, self.core.connections.lend()));
        // If nobody waits for it any more, the transaction is dropped here and the connection is back at once.
        let _ = reply.send(Ok(offer));
        let since = Instant::now();
        let mut taken_back_at = Some(since + patience);
        let back = loop {
            self.put_off_renewals();
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
                        // Dropped, it comes home.
                        drop(offered.take());
                    }
                    self.time_out(since);
                }
            }
        };
        // A connection that never comes home was leaked with its transaction; the next begin opens another one and
        // finds the file locked, which says so.
        self.cleaning = match back {
            Ok(Returned::Ended { cleaning, committed }) => {
                if committed {
                    self.core.committed();
                }
                Some(cleaning)
            }
            Ok(Returned::Dropped {
                mut connection,
                ended_by_hand,
            }) => match end(&mut connection).await {
                Err(_) if self.database.is_some() => None,
                Ok(()) | Err(_) => Some(connection.clean(ended_by_hand)),
            },
            Err(_) => None,
        };
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
