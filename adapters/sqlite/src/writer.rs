//! The one writer of a file: a task with a queue in front.
//!
//! Operations wait in the order in which they came. Those without a transaction of the caller's are taken together and
//! share one `BEGIN IMMEDIATE .. COMMIT`, which costs one flush to disk however many they are. A caller's transaction
//! takes its turn in the same queue and has the connection until it ends.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{BoxFuture, NewChain, Settled, Settlement};
use queuert::{JobId, StateError, StateErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteTransactionManager};
use sqlx::{Connection, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::core::Core;
use crate::create::{self, Created};
use crate::error::{copy, is_busy, translate};
use crate::settle;
use crate::transaction::{Returned, SqliteTransaction, end};

/// The most operations in one transaction: beyond it the flush is paid for, and only latency grows.
const GROUP: usize = 256;

/// The longest pause before the lock of another process is asked for again. Short, because SQLite keeps no queue:
/// whoever asks more often gets it sooner.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// What waits in the queue.
pub(crate) enum Request {
    Create(Vec<NewChain>, Reply<Created>),
    Settle(Vec<Settlement>, Reply<Vec<Settled>>),
    Other(Box<dyn Operation>),
    /// One whose commit does not count as news.
    Quiet(Box<dyn Operation>),
    Begin(Reply<SqliteTransaction>),
    Close(oneshot::Sender<()>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StateError>>;

/// An operation that can be run again if the transaction that it shared failed.
pub(crate) trait Operation: Send {
    fn run<'a>(&'a mut self, connection: &'a mut SqliteConnection) -> BoxFuture<'a, Result<(), StateError>>;
    /// Gives the result of the last run to whoever waits.
    fn answer(self: Box<Self>);
    /// Gives an error to whoever waits.
    fn fail(self: Box<Self>, error: StateError);
}

/// An operation made from a function.
pub(crate) struct Task<T, F> {
    pub(crate) work: F,
    pub(crate) result: Option<T>,
    pub(crate) reply: Reply<T>,
}

impl<T, F> Operation for Task<T, F>
where
    T: Send,
    F: for<'c> Fn(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StateError>> + Send,
{
    fn run<'a>(&'a mut self, connection: &'a mut SqliteConnection) -> BoxFuture<'a, Result<(), StateError>> {
        let work = (self.work)(connection);
        Box::pin(async {
            self.result = Some(work.await?);
            Ok(())
        })
    }

    fn answer(self: Box<Self>) {
        if let Some(result) = self.result {
            let _ = self.reply.send(Ok(result));
        }
    }

    fn fail(self: Box<Self>, error: StateError) {
        let _ = self.reply.send(Err(error));
    }
}

struct Waiting {
    request: Request,
    since: Instant,
}

pub(crate) struct Writer {
    core: Arc<Core>,
    options: SqliteConnectOptions,
    /// `None` after a failure that leaves its state in doubt; opened again when needed.
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

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

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
        options: SqliteConnectOptions,
        connection: SqliteConnection,
        in_memory: bool,
        lock_timeout: Duration,
    ) -> Queue {
        let (sender, queue) = mpsc::unbounded_channel();
        let writer = Self {
            core,
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
                Some(first) => {
                    let mut group = vec![first];
                    while group.len() < GROUP && self.waiting.front().is_some_and(|next| groups(&next.request)) {
                        group.extend(self.waiting.pop_front().map(|waiting| waiting.request));
                    }
                    self.run_group(group).await;
                }
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
        let mut pause = Duration::from_micros(200);
        let mut connection = self.connection().await?;
        loop {
            let begin = SqliteTransactionManager::begin(&mut connection, Some("BEGIN IMMEDIATE".into_sql_str()));
            let error = match begin.await {
                Ok(()) => return Ok(connection),
                Err(error) => error,
            };
            let busy = is_busy(&error);
            if busy && Instant::now() < deadline {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
            self.recover(connection).await;
            return Err(match busy {
                false => translate(error),
                true => StateError::new(
                    StateErrorKind::Transient,
                    format!(
                        "the database has been locked by another connection for {:?}; look for a process that keeps a \
                         transaction open on this file (`fuser` or `lsof` on it and its `-wal` name them)",
                        self.lock_timeout
                    ),
                )
                .with_source(error),
            });
        }
    }

    /// Runs operations in one transaction. If one fails, all are undone and run again one by one: only the one at
    /// fault is told of it. That is cheaper than a savepoint around each, which would cost every group twice as many
    /// statements.
    async fn run_group(&mut self, mut group: Vec<Request>) {
        let several = group.len() > 1;
        let news = group.iter().any(|request| !matches!(request, Request::Quiet(_)));
        let mut connection = match self.begin().await {
            Ok(connection) => connection,
            Err(error) => return group.into_iter().for_each(|request| request.fail(copy(&error))),
        };
        let mut answers = Vec::with_capacity(group.len());
        match run_all(&self.core, &mut connection, &mut group, &mut answers).await {
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
                        true => Box::pin(self.run_group(vec![request])).await,
                        false => request.fail(copy(&error)),
                    }
                }
            }
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

fn groups(request: &Request) -> bool {
    !matches!(request, Request::Begin(_) | Request::Close(_))
}

impl Request {
    fn fail(self, error: StateError) {
        match self {
            Self::Create(_, reply) => drop(reply.send(Err(error))),
            Self::Settle(_, reply) => drop(reply.send(Err(error))),
            Self::Other(operation) | Self::Quiet(operation) => operation.fail(error),
            Self::Begin(reply) => drop(reply.send(Err(error))),
            Self::Close(_) => {}
        }
    }
}

/// An operation that has run, and waits for the commit to be answered.
enum Answer {
    Create(Vec<NewChain>, Reply<Created>, Created),
    Settle(Vec<Settlement>, Reply<Vec<Settled>>, Vec<Settled>),
    Other(Box<dyn Operation>),
}

impl Answer {
    fn send(self) {
        match self {
            Self::Create(_, reply, created) => drop(reply.send(Ok(created))),
            Self::Settle(_, reply, settled) => drop(reply.send(Ok(settled))),
            Self::Other(operation) => operation.answer(),
        }
    }

    fn into_request(self) -> Request {
        match self {
            Self::Create(chains, reply, _) => Request::Create(chains, reply),
            Self::Settle(settlements, reply, _) => Request::Settle(settlements, reply),
            Self::Other(operation) => Request::Other(operation),
        }
    }

    fn fail(self, error: StateError) {
        self.into_request().fail(error);
    }
}

/// Runs all operations of a group, moving each from `group` to `answers` when it has run. Concurrent starts share their
/// statements, and so do concurrent ends.
async fn run_all(
    core: &Core,
    connection: &mut SqliteConnection,
    group: &mut Vec<Request>,
    answers: &mut Vec<Answer>,
) -> Result<(), StateError> {
    run_creations(core, connection, group, answers).await?;
    run_settlements(core, connection, group, answers).await?;
    // Taken from the end, so that the first to come is the first to run.
    group.reverse();
    while let Some(request) = group.pop() {
        match request {
            Request::Create(chains, reply) => match create::create(connection, core, &chains).await {
                Ok(created) => answers.push(Answer::Create(chains, reply, created)),
                Err(error) => {
                    group.push(Request::Create(chains, reply));
                    return Err(error);
                }
            },
            Request::Settle(settlements, reply) => match settle::settle(connection, core, &settlements).await {
                Ok(settled) => answers.push(Answer::Settle(settlements, reply, settled)),
                Err(error) => {
                    group.push(Request::Settle(settlements, reply));
                    return Err(error);
                }
            },
            Request::Other(mut operation) | Request::Quiet(mut operation) => match operation.run(connection).await {
                Ok(()) => answers.push(Answer::Other(operation)),
                Err(error) => {
                    group.push(Request::Other(operation));
                    return Err(error);
                }
            },
            Request::Begin(_) | Request::Close(_) => {}
        }
    }
    Ok(())
}

/// Runs the creations of a group as one, if none of them is refused. A refused batch has written nothing.
async fn run_creations(
    core: &Core,
    connection: &mut SqliteConnection,
    group: &mut Vec<Request>,
    answers: &mut Vec<Answer>,
) -> Result<(), StateError> {
    let mut all: Vec<NewChain> = Vec::new();
    let mut several = 0;
    for request in group.iter() {
        if let Request::Create(chains, _) = request {
            all.extend_from_slice(chains);
            several += 1;
        }
    }
    if several < 2 {
        return Ok(());
    }
    let Ok(mut created) = create::create(connection, core, &all).await? else {
        return Ok(());
    };
    for request in std::mem::take(group) {
        match request {
            Request::Create(chains, reply) => {
                let rest = created.split_off(chains.len());
                let own = std::mem::replace(&mut created, rest);
                answers.push(Answer::Create(chains, reply, Ok(own)));
            }
            other => group.push(other),
        }
    }
    Ok(())
}

/// Runs the ends of a group as one, if no job is named twice.
async fn run_settlements(
    core: &Core,
    connection: &mut SqliteConnection,
    group: &mut Vec<Request>,
    answers: &mut Vec<Answer>,
) -> Result<(), StateError> {
    let mut all: Vec<Settlement> = Vec::new();
    let mut several = 0;
    for request in group.iter() {
        if let Request::Settle(settlements, _) = request {
            all.extend_from_slice(settlements);
            several += 1;
        }
    }
    let mut jobs: HashSet<JobId> = HashSet::new();
    if several < 2 || !all.iter().all(|settlement| jobs.insert(settlement.job)) {
        return Ok(());
    }
    let mut settled = settle::settle(connection, core, &all).await?;
    for request in std::mem::take(group) {
        match request {
            Request::Settle(settlements, reply) => {
                let rest = settled.split_off(settlements.len());
                let own = std::mem::replace(&mut settled, rest);
                answers.push(Answer::Settle(settlements, reply, own));
            }
            other => group.push(other),
        }
    }
    Ok(())
}
