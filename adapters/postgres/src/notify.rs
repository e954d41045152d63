//! Wake-ups between processes through `LISTEN` and `NOTIFY`.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::NotifyError;
use queuert::adapter::{BoxFuture, Notice, NoticeSender, NotifyAdapter, Subscription, Topic};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgConnection, PgPool};
use tokio::sync::{Notify, oneshot, watch};

use crate::lifeline::Lifeline;
use crate::notify_hub::Hub;
use crate::notify_listener::Listener;
use crate::notify_outbox::Outbox;
use crate::notify_payload::{Batch, hash};

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
/// They go out after the commit, and those of a process share one statement where they come within a few milliseconds:
/// the first goes at once. In a process where nobody listens whoever announces waits for that one, and for no other; a
/// process that is about to end calls [`flush`](Self::flush) to see the last ones out. What cannot be announced is tried again, merged, until it can.
///
/// # Who looks for a new job
///
/// One process, if one with a free worker is there. Every announcement reaches all processes, and each works out by the
/// same rule which of them are asked: jobs are shared out evenly over the processes that run their type, in an order
/// that changes with every announcement; who takes jobs says so; and what nobody has spoken for within
/// [`PostgresNotifyOptions::stagger`], because those who were asked are busy or dead, is offered to ever more processes.
///
/// # When the connection is lost
///
/// A lost connection is noticed, also one that only seems to be there, and the listener connects again for as long as
/// it takes, in growing pauses. It listens first, and then tells everybody to look at the store. A try that fails is an
/// event, [`NotifyFailed`](queuert::Event::NotifyFailed). Meanwhile jobs are found by polling.
///
/// ```no_run
/// # use queuert::Client;
/// # use queuert::memory::MemoryState;
/// # use queuert_postgres::PostgresNotify;
/// # async fn run(state: MemoryState) -> Result<(), Box<dyn std::error::Error>> {
/// let notify = PostgresNotify::connect_lazy("postgres://app@db.internal/app")?;
/// let client = Client::builder(state).notify(notify).build();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresNotify {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: PostgresNotifyOptions,
    pub(crate) connect: PgConnectOptions,
    /// What the listener's session is besides, if the pool is that of a state.
    pub(crate) lifeline: Option<Arc<Lifeline>>,
    pub(crate) channel: String,
    pub(crate) outbox: Arc<Outbox>,
    state: Mutex<State>,
    pub(crate) peers: AtomicUsize,
    /// Fires when subscribers come or go.
    pub(crate) changed: Arc<Notify>,
    /// Dropped with the last handle and subscription, which ends the listener.
    pub(crate) alive: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) hub: Hub,
    pub(crate) phase: Phase,
}

/// Where the listener is.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// It connects for the first time; these wait for it.
    Starting(Vec<oneshot::Sender<Result<(), Arc<str>>>>),
    Listening,
    /// It has lost its connection and cannot get another one for now.
    Failing(Arc<str>),
}

impl PostgresNotify {
    /// Hints through the database that a pool leads to, with the default options. The pool lends a connection for each
    /// announcement; the listener has one of its own, with the same settings.
    pub fn new(pool: PgPool) -> Self {
        Self::options().build(pool)
    }

    /// Hints through the database of a URL, with the default options, and a pool of one connection for announcements.
    /// Connects when it is first needed.
    ///
    /// # Errors
    ///
    /// If the URL is none.
    pub fn connect_lazy(url: &str) -> Result<Self, NotifyError> {
        Self::options().connect_lazy(url)
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

    /// How many other processes that run jobs this one knows of; none before somebody here listens.
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
        let (subscription, answer) = {
            let mut state = shared.lock();
            // Before the listener is there, so that it tells of it whatever it hears from the first moment on.
            let (sender, subscription) = shared.subscribe(&mut state.hub, topic);
            (subscription, self.listener(&mut state, &sender))
        };
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

    /// Starts the listener if it is not there. An answer comes if its first connection is still to be made.
    fn listener(&self, state: &mut State, sender: &NoticeSender) -> Option<oneshot::Receiver<Result<(), Arc<str>>>> {
        let (reply, answer) = oneshot::channel();
        match &mut state.phase {
            Phase::Listening => return None,
            // It goes on trying, and tells everybody to look when it listens again: no reason to wait.
            Phase::Failing(error) => {
                sender.fail(Arc::clone(error));
                return None;
            }
            Phase::Starting(waiting) => waiting.push(reply),
            Phase::Idle => {
                state.phase = Phase::Starting(vec![reply]);
                tokio::spawn(Listener::new(&self.shared).run());
            }
        }
        Some(answer)
    }
}

impl NotifyAdapter for PostgresNotify {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async move {
            let (left, listening) = {
                let mut state = self.shared.lock();
                let tell = |notice| state.hub.tell(notice);
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
            // A process that listens goes on, and workers have better things to do than to wait for hints.
            outbox.post_quietly(add);
            outbox.take_failure()
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(self.add(topic))
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(self: &Arc<Self>, hub: &mut Hub, topic: Topic) -> (NoticeSender, Subscription) {
        let id = hub.next_id();
        let guard = Unsubscribe {
            shared: Arc::clone(self),
            id,
            topic: topic.clone(),
        };
        let (sender, subscription) = Subscription::new(guard);
        hub.add(id, topic, sender.clone());
        (sender, subscription)
    }
}

struct Unsubscribe {
    shared: Arc<Shared>,
    id: u64,
    topic: Topic,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.shared.lock().hub.remove(self.id, &self.topic);
        self.shared.changed.notify_one();
    }
}

/// Options of [`PostgresNotify`].
#[derive(Clone)]
#[must_use]
pub struct PostgresNotifyOptions {
    schema: String,
    listen_with: Option<PgConnectOptions>,
    pub(crate) linger: Duration,
    pub(crate) check_interval: Duration,
    pub(crate) stagger: Duration,
}

impl Default for PostgresNotifyOptions {
    fn default() -> Self {
        Self {
            schema: "queuert".to_owned(),
            listen_with: None,
            linger: Duration::from_secs(30),
            check_interval: Duration::from_secs(10),
            stagger: Duration::from_millis(30),
        }
    }
}

impl PostgresNotifyOptions {
    /// The schema of the store that the hints are about. Stores in other schemas of the database hear nothing of them.
    /// Default: `queuert`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// How the listener connects: directly to the server, where the pool goes through a pooler in transaction mode.
    /// Default: like the pool.
    pub fn listen_with(mut self, options: PgConnectOptions) -> Self {
        self.listen_with = Some(options);
        self
    }

    /// How long the listener's connection is kept when nobody listens any more. Default: 30 seconds.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// How often the listener asks the server for an answer, so that a connection that only seems to be there is
    /// noticed; half this time, and at least two seconds, is how long the answer may take. Default: 10 seconds.
    pub fn check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval.max(Duration::from_millis(10));
        self
    }

    /// How long the processes that were not asked for a new job wait for one of those that were to say that it takes it,
    /// before more of them are asked. Longer than a notification takes to go there and another one to come back.
    /// Default: 30 milliseconds.
    pub fn stagger(mut self, stagger: Duration) -> Self {
        self.stagger = stagger;
        self
    }

    /// Hints through the database that a pool leads to.
    pub fn build(self, pool: PgPool) -> PostgresNotify {
        let connect = match &self.listen_with {
            Some(options) => options.clone(),
            None => pool.connect_options().as_ref().clone(),
        };
        let channel = channel(&self.schema);
        let sender = fastrand::u64(1..);
        let lifeline = Lifeline::of_options(&connect);
        if let Some(lifeline) = &lifeline {
            lifeline.announce_listener();
        }
        PostgresNotify {
            shared: Arc::new(Shared {
                lifeline,
                connect: connect.application_name(&application_name(&self.schema)),
                outbox: Arc::new(Outbox::new(pool, channel.clone(), sender)),
                channel,
                options: self,
                state: Mutex::default(),
                peers: AtomicUsize::new(0),
                changed: Arc::default(),
                alive: watch::channel(()).0,
            }),
        }
    }

    /// Hints through the database of a URL, with a pool of one connection for announcements. Connects when it is first
    /// needed.
    ///
    /// # Errors
    ///
    /// If the URL is none.
    pub fn connect_lazy(self, url: &str) -> Result<PostgresNotify, NotifyError> {
        // The URL itself may hold a password and is not repeated.
        let wrong =
            || NotifyError::new("the URL is not one of Postgres; write postgres://user:password@host:port/database");
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(wrong());
        }
        let options = PgConnectOptions::from_str(url).map_err(|error| wrong().with_source(error))?;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(Duration::from_secs(60))
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with(options.application_name(&application_name(&self.schema)));
        Ok(self.build(pool))
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

impl fmt::Debug for PostgresNotifyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Connect options hold a password.
        f.debug_struct("PostgresNotifyOptions")
            .field("schema", &self.schema)
            .field("linger", &self.linger)
            .field("check_interval", &self.check_interval)
            .field("stagger", &self.stagger)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn a_url_that_is_none_is_refused_without_repeating_it() {
        let error = PostgresNotify::connect_lazy("mysql://user:secret@host/db").unwrap_err();
        assert!(error.to_string().contains("postgres://"), "{error}");
        assert!(!format!("{error:?}").contains("secret"));
    }
}
