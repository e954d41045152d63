//! Wake-ups between processes through `LISTEN` and `NOTIFY`.

pub(crate) mod fleet;
pub(crate) mod listener;
pub(crate) mod look;
mod outbox;
mod payload;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn};
use queuert::NotifyError;
use queuert::adapter::{BoxFuture, Notice, NoticeSender, NotifyAdapter, Subscriber, Subscribers, Subscription, Topic};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, SqlSafeStr};
use tokio::sync::{Notify, oneshot, watch};

use crate::connection::budget::Budget;
use crate::connection::connect::missing_keepalives;
use crate::connection::hidden::Hidden;
use crate::connection::url;
use crate::liveness::Liveness;
use crate::liveness::session_lock::SessionLock;
use crate::notify::listener::Listener;
use crate::notify::look::Look;
use crate::notify::outbox::Outbox;
use crate::notify::payload::{Batch, hash};
use crate::state::PostgresState;

/// Carries hints between the processes on one database: a job that one process starts begins in another one within
/// milliseconds. Within the process hints are delivered at once. Clones share their subscribers.
///
/// # Connections
///
/// All subscriptions of a process share **one** connection, which is opened by the first of them and closed some time
/// after the last has ended. It needs a session of its own: `LISTEN` does not work through a pooler in transaction mode,
/// which is noticed, and said, when the first one subscribes. [`PostgresNotifyOptions::listen_with`] gives the listener
/// a way around the pooler. Announcements go out on a connection of the pool, borrowed for one statement, and do work
/// through a pooler.
///
/// # Announcements
///
/// They go out after the commit. Announcements of a process that come within a few milliseconds share one statement; the first
/// goes at once. In a process without subscribers the caller waits for that first one, and for no other; a process that is
/// about to end calls [`flush`](Self::flush) to wait for the last ones. An announcement that fails is tried again, merged with
/// later ones, until it succeeds.
///
/// # Which process looks for a new job
///
/// One process, if one with a free worker is there. Every announcement reaches all processes, and each works out by the
/// same rule which of them are asked: jobs are shared out evenly over the processes that run their type, in an order
/// that changes with every announcement; a process that takes jobs announces it; and jobs that no process has taken within
/// [`PostgresNotifyOptions::stagger`], because the processes that were asked are busy or dead, are offered to ever more
/// processes.
///
/// # When the connection is lost
///
/// A lost connection is noticed, also one that only seems to be there, and the listener connects again for as long as
/// it takes, in growing pauses. It listens first, and then tells all subscribers to look at the store. A try that fails is an
/// event, [`NotifyFailed`](queuert::Event::NotifyFailed). Meanwhile jobs are found by polling.
///
/// ```no_run
/// # use queuert_postgres::{Client, PostgresNotify, PostgresState};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let state = PostgresState::connect("postgres://app@db.internal/app").await?;
/// let notify = PostgresNotify::new(&state);
/// let client = Client::builder(state).notify(notify).build();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresNotify {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: PostgresNotifyOptions,
    pub(crate) connect: Hidden<PgConnectOptions>,
    /// The lock of the store, which the listener's session also holds.
    pub(crate) session_lock: Option<Arc<SessionLock>>,
    /// What the store knows of other processes. Weak, because it must not outlive the store.
    pub(crate) liveness: Weak<Liveness>,
    pub(crate) channel: String,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) look: Arc<Look>,
    state: Lock<State>,
    pub(crate) peers: AtomicUsize,
    /// Fires when subscribers come or go.
    pub(crate) changed: Arc<Notify>,
    /// Dropped with the last handle and subscription, which ends the listener.
    pub(crate) alive: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) subscribers: Subscribers,
    pub(crate) phase: Phase,
}

/// Where the listener is.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// It connects for the first time. These subscribers wait for it.
    Starting(Vec<oneshot::Sender<Result<(), Arc<str>>>>),
    Listening,
    /// It has lost its connection and cannot get another one for now.
    Failing(Arc<str>),
}

impl PostgresNotify {
    /// Hints about the jobs of a store, with the default options. The pool of the store lends a connection for each
    /// announcement; the listener has a connection of its own, with the same settings, and is also the session by which other
    /// processes know that this one lives.
    pub fn new(state: &PostgresState) -> Self {
        Self::options().build(state)
    }

    /// Hints about the jobs of the store in `schema`, through the database that a pool leads to, with the default options.
    /// For a store that is not at hand, or is another adapter's.
    pub fn from_pool(pool: PgPool, schema: &str) -> Self {
        Self::options().from_pool(pool, schema)
    }

    /// Hints about the jobs of the store in `schema`, through the database of a URL, with the default options and a pool of
    /// one connection for announcements. Connects when it is first needed.
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub fn connect_lazy(url: &str, schema: &str) -> Result<Self, NotifyError> {
        Self::options().connect_lazy(url, schema)
    }

    /// Other options.
    pub fn options() -> PostgresNotifyOptions {
        PostgresNotifyOptions::default()
    }

    /// Announces **inside** a transaction of the caller's: the notices are delivered if and when it commits, to every
    /// process, this one included, and never after a rollback.
    ///
    /// Use it for transactions that this library does not commit, where nothing of yours can run after the commit.
    /// Otherwise prefer [`HeldEffects::publish`](queuert::HeldEffects::publish): Postgres lets transactions with
    /// notifications commit one at a time only, in the whole database, which costs two thirds of the commits of ten busy
    /// connections.
    ///
    /// ```no_run
    /// # use queuert::{Client, adapter::StateAdapter};
    /// # use queuert_postgres::PostgresNotify;
    /// # async fn run<S>(client: Client<S>, notify: PostgresNotify, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>>
    /// # where S: StateAdapter<Connection = sqlx::PgConnection> {
    /// let mut tx = pool.begin().await?;
    /// let mut foreign = client.adopt(&mut tx);
    /// // client.start(..).within(&mut foreign).await?
    /// let mut held = foreign.into_effects();
    /// notify.announce_within(&mut tx, &held.take_notices()).await?;
    /// tx.commit().await?;
    /// held.publish().await; // the events; the wake-ups went with the commit
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the statement fails; the transaction can only be rolled back then.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the transaction with or without the notices, and a connection that is busy until the
    /// server has answered: roll it back.
    pub async fn announce_within(&self, connection: &mut PgConnection, notices: &[Notice]) -> Result<(), NotifyError> {
        let mut batch = Batch::default();
        notices.iter().for_each(|notice| batch.notice(notice));
        self.shared.outbox.post_within(connection, &batch).await
    }

    /// How many other processes that run jobs this one knows of; none before this process has a subscriber.
    pub fn peers(&self) -> usize {
        self.shared.peers.load(Ordering::SeqCst)
    }

    /// Waits until everything that was announced so far is out. For processes that end: an announcement within some
    /// milliseconds of another one is sent by a task.
    ///
    /// # Errors
    ///
    /// If an announcement has failed. It is tried again all the same.
    ///
    /// # Cancel safety
    ///
    /// A dropped future ends the wait and nothing else.
    pub async fn flush(&self) -> Result<(), NotifyError> {
        self.shared.outbox.flush().await
    }

    async fn add(&self, topic: Topic) -> Result<Subscription, NotifyError> {
        let shared = &self.shared;
        let (subscription, Listening { answer, start }) = {
            let mut state = shared.lock();
            // Before the listener is there, so that the subscriber gets every notification from the first moment on.
            let (sender, subscription) = shared.subscribe(&mut state.subscribers, topic);
            (subscription, listening(&mut state, &sender))
        };
        if start {
            // Not under the lock: a runtime that is ending drops the task right here, and that takes the lock.
            spawn(Listener::new(shared).run());
        }
        shared.changed.notify_one();
        if let Some(answer) = answer {
            match answer.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(NotifyError::new(&*error)),
                Err(_) => return Err(NotifyError::new("the runtime that listened has ended; subscribe again")),
            }
        }
        Ok(subscription)
    }
}

/// What a new subscription needs of the listener.
struct Listening {
    /// Answered when the first connection is made, if it is still to be made.
    answer: Option<oneshot::Receiver<Result<(), Arc<str>>>>,
    /// Whether the caller is to start it.
    start: bool,
}

fn listening(state: &mut State, sender: &NoticeSender) -> Listening {
    let (reply, answer) = oneshot::channel();
    let mut start = false;
    let answer = match &mut state.phase {
        Phase::Listening => None,
        // It goes on trying, and tells all subscribers to look at the store when it listens again: no reason to wait.
        Phase::Failing(error) => {
            sender.fail(Arc::clone(error));
            None
        }
        Phase::Starting(waiting) => {
            waiting.push(reply);
            Some(answer)
        }
        Phase::Idle => {
            state.phase = Phase::Starting(vec![reply]);
            start = true;
            Some(answer)
        }
    };
    Listening { answer, start }
}

impl NotifyAdapter for PostgresNotify {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async move {
            let (left, listening) = {
                let mut state = self.shared.lock();
                let tell = |notice| state.subscribers.tell(notice);
                let left: Vec<Notice> = notices.iter().filter_map(tell).collect();
                (left, !matches!(state.phase, Phase::Idle))
            };
            if left.is_empty() {
                return Ok(());
            }
            let outbox = &self.shared.outbox;
            let add = |batch: &mut Batch| left.iter().for_each(|notice| batch.notice(notice));
            if !listening {
                return outbox.post(add).await;
            }
            // A process that listens goes on running, and its workers do not wait for hints.
            outbox.post_quietly(add);
            outbox.take_failure()
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(self.add(topic))
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> LockGuard<'_, State> {
        self.state.lock()
    }

    fn subscribe(self: &Arc<Self>, subscribers: &mut Subscribers, topic: Topic) -> (NoticeSender, Subscription) {
        subscribers.add(topic, |subscriber| Unsubscribe {
            shared: Arc::clone(self),
            subscriber,
        })
    }
}

struct Unsubscribe {
    shared: Arc<Shared>,
    subscriber: Subscriber,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.shared.lock().subscribers.remove(&self.subscriber);
        self.shared.changed.notify_one();
    }
}

/// Options of [`PostgresNotify`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresNotifyOptions {
    listen_with: Hidden<Option<PgConnectOptions>>,
    pub(crate) linger: Duration,
    pub(crate) check_interval: Duration,
    pub(crate) stagger: Duration,
    pub(crate) look_interval: Duration,
}

impl Default for PostgresNotifyOptions {
    fn default() -> Self {
        Self {
            listen_with: Hidden(None),
            linger: Duration::from_secs(30),
            check_interval: Duration::from_secs(10),
            stagger: Duration::from_millis(30),
            look_interval: Duration::from_millis(900),
        }
    }
}

/// Bounds of what may be set: a listener that does nothing else than to look is of no use, and times that are added up must
/// not overflow.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(86_400 * 30);

impl PostgresNotifyOptions {
    /// How the listener connects: directly to the server, where the pool goes through a pooler in transaction mode.
    /// Default: like the pool.
    pub fn listen_with(mut self, options: PgConnectOptions) -> Self {
        self.listen_with = Hidden(Some(options));
        self
    }

    /// How long the listener's connection is kept after the last subscription has ended. Default: 30 seconds.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger.min(LONGEST);
        self
    }

    /// How often the listener asks the server for an answer, so that a connection that only seems to be there is
    /// noticed; half this time, and at least two seconds, is how long the answer may take. Default: 10 seconds.
    pub fn check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long the processes that were not asked for a new job wait until a process that was asked announces that it takes the
    /// job, before more of them are asked. Longer than a notification takes to go there and another one to come back.
    /// Default: 30 milliseconds.
    pub fn stagger(mut self, stagger: Duration) -> Self {
        self.stagger = stagger.min(LONGEST);
        self
    }

    /// How often a fleet looks at the store for due jobs, announced or not: one process for all, whichever types they run, and
    /// with one statement, which also looks for processes that have died. So a job runs about this long after it is due at the
    /// latest, while any process has an idle worker for it: also if the process that started it died before it could announce
    /// it, or the process that knows when a retry is due is busy. Where a look takes the server long, because it has to keep
    /// many dead rows, looks come less often: they take a quarter of the time at most, and are five seconds apart
    /// at most. `Duration::MAX` is a month, so in effect
    /// never. Default: 900 milliseconds.
    pub fn look_interval(mut self, interval: Duration) -> Self {
        self.look_interval = interval.clamp(SHORTEST, LONGEST);
        self
    }

    /// Hints about the jobs of a store. Stores in other schemas of the database hear nothing of them.
    pub fn build(self, state: &PostgresState) -> PostgresNotify {
        let session_lock = match &*self.listen_with {
            // Another way to the server, whose sessions do not carry the number of the lock.
            Some(_) => None,
            None => state.session_lock(),
        };
        let liveness = state.liveness().map(Arc::downgrade).unwrap_or_default();
        self.assemble(
            state.pool().clone(),
            state.schema(),
            session_lock,
            liveness,
            Some(state.budget()),
        )
    }

    /// Hints about the jobs of the store in `schema`, through the database that a pool leads to. For a store that is not at
    /// hand, or is another adapter's.
    pub fn from_pool(self, pool: PgPool, schema: &str) -> PostgresNotify {
        self.assemble(pool, schema, None, Weak::new(), None)
    }

    /// Hints about the jobs of the store in `schema`, through the database of a URL, with a pool of one connection for
    /// announcements. Connects when it is first needed.
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub fn connect_lazy(self, url: &str, schema: &str) -> Result<PostgresNotify, NotifyError> {
        // The URL itself may hold a password and is not repeated.
        let wrong =
            || NotifyError::new("the URL is not one of Postgres; write postgres://user:password@host:port/database");
        let options = url::read(url).ok_or_else(wrong)?;
        // After the connection was made, because a pooler would refuse them as options of the connection.
        let keepalives: Vec<String> = missing_keepalives(&options)
            .into_iter()
            .map(|(name, value)| format!("set_config('{name}', '{value}', false)"))
            .collect();
        let keepalives = AssertSqlSafe(format!("SELECT {}", keepalives.join(", "))).into_sql_str();
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(Duration::from_secs(60))
            .acquire_timeout(Duration::from_secs(5))
            .after_connect(move |connection, _| {
                let keepalives = keepalives.clone();
                Box::pin(async move { sqlx::raw_sql(keepalives).execute(connection).await.map(drop) })
            })
            .connect_lazy_with(options.application_name(&application_name(schema)));
        Ok(self.from_pool(pool, schema))
    }

    fn assemble(
        self,
        pool: PgPool,
        schema: &str,
        session_lock: Option<Arc<SessionLock>>,
        liveness: Weak<Liveness>,
        store: Option<&Budget>,
    ) -> PostgresNotify {
        let connect = match &*self.listen_with {
            Some(options) => options.clone(),
            None => pool.connect_options().as_ref().clone(),
        };
        if let Some(session_lock) = &session_lock {
            session_lock.announce_listener();
        }
        let channel = channel(schema);
        PostgresNotify {
            shared: Arc::new(Shared {
                session_lock,
                liveness,
                // A look also sees the jobs that are due before the next look, even if that look comes late.
                look: Arc::new(Look::new(schema, self.look_interval * 2)),
                connect: Hidden(connect.application_name(&application_name(schema))),
                outbox: Arc::new(Outbox::new(pool, store, channel.clone(), fastrand::u64(1..))),
                channel,
                options: self,
                state: Lock::default(),
                peers: AtomicUsize::new(0),
                changed: Arc::default(),
                alive: watch::channel(()).0,
            }),
        }
    }
}

/// What Postgres takes as the name of a channel, in bytes.
const LONGEST_NAME: usize = 63;

/// The channel of a schema. Any name of a schema will do; one that leaves no room is hashed.
fn channel(schema: &str) -> String {
    let channel = format!("queuert:{schema}");
    if channel.len() <= LONGEST_NAME && !channel.contains('\0') {
        return channel;
    }
    format!(
        "queuert#{:016x}{:016x}",
        hash(channel.bytes()),
        hash(channel.bytes().rev())
    )
}

/// What an operator sees in `pg_stat_activity`; the server cuts it where it is too long.
fn application_name(schema: &str) -> String {
    format!("queuert notify {}", schema.replace('\0', ""))
}

impl fmt::Debug for PostgresNotify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresNotify")
            .field("channel", &self.shared.channel)
            .field("phase", &self.shared.lock().phase)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn every_schema_has_a_channel_of_its_own_that_postgres_takes() {
        let long = "s".repeat(63);
        let longer = format!("{long}!");
        let schemas = [
            "queuert",
            "Queuert",
            "with space",
            "it's \"odd\"",
            "ü",
            "",
            &long,
            &longer,
            "nul\0",
        ];
        let channels: std::collections::BTreeSet<_> = schemas.iter().map(|schema| channel(schema)).collect();
        assert_eq!(channels.len(), schemas.len());
        assert!(
            channels
                .iter()
                .all(|channel| channel.len() <= LONGEST_NAME && !channel.contains('\0'))
        );
    }

    /// Subscribes when it is dropped, which starts the listener.
    struct SubscribesWhenDropped(PostgresNotify);

    impl Drop for SubscribesWhenDropped {
        fn drop(&mut self) {
            let chain = queuert::ChainId::from_uuid(uuid::Uuid::nil());
            let _ = self.0.subscribe(Topic::Chain(chain)).now_or_never();
        }
    }

    #[tokio::test]
    async fn the_connection_for_announcements_has_keepalives() {
        let url = postgres_support::server_url().await;
        let notify = PostgresNotify::connect_lazy(&url, "queuert").expect("the URL is one");
        let mut lent = notify.shared.outbox.connection().await;
        let set = "SELECT name FROM pg_settings WHERE name LIKE 'tcp\\_%' AND source = 'session' ORDER BY name";
        let set: Vec<String> = sqlx::query_scalar(set).fetch_all(&mut *lent).await.unwrap();
        let all = [
            "tcp_keepalives_count",
            "tcp_keepalives_idle",
            "tcp_keepalives_interval",
            "tcp_user_timeout",
        ];
        assert_eq!(set, all);
    }

    #[test]
    fn a_runtime_ends_while_the_listener_starts() {
        let (ended, hears) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let notify = runtime.block_on(async {
                PostgresNotify::connect_lazy("postgres://nobody@localhost/nowhere", "queuert").expect("the URL is one")
            });
            let subscribes = SubscribesWhenDropped(notify.clone());
            runtime.spawn(async move {
                std::future::pending::<()>().await;
                drop(subscribes);
            });
            drop(runtime);
            let idle = matches!(notify.shared.lock().phase, Phase::Idle);
            ended.send(idle).unwrap();
        });
        let idle = hears.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
        assert!(idle, "the next subscription starts another listener");
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_refused_without_repeating_it() {
        let error = PostgresNotify::connect_lazy("mysql://user:secret@host/db", "queuert").unwrap_err();
        assert!(error.to_string().contains("postgres://"), "{error}");
        assert!(!format!("{error:?}").contains("secret"));
    }
}
