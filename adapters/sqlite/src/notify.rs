//! Wake-ups between processes that share a file, without a server.
//!
//! SQLite counts the changes of a file. One connection per process looks at that counter at a short interval while
//! anybody listens, which costs a fraction of a percent of a core; when it has moved, one look at the indexes tells what
//! there is to do. So writers pay nothing for other processes, and a change that was made by any other program on the
//! file is noticed too.
//!
//! That connection is on a thread of its own, so that it depends on no runtime: one that ends, or that nobody drives, would
//! leave the subscribers of the others without hints. The first subscription starts the thread, and the others wait for it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::__task::{Lock, LockGuard};
use queuert::adapter::{BoxFuture, Notice, NotifyAdapter, Subscription, Topic};
use queuert::{ChainId, JobId, NotifyError, StateError, StateErrorKind, Timestamp, TypeName};
use rusqlite::OpenFlags;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock;
use crate::connections::{Open, track};
use crate::core::Core;
use crate::db::{Db, query};
use crate::error::{DbError, copy, corrupt, translate};
use crate::hub::Hub;
use crate::json::Batch;
use crate::state::SqliteState;
use crate::thread;

/// How often the change counter is looked at while somebody listens.
const INTERVAL: Duration = Duration::from_millis(25);

/// Looks after which a watch that nobody needs any more ends: waiters come and go, and a connection each is too much.
const LINGER: u32 = 200;

/// A pause after a failed look, before the next one.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// A look hardly ever waits in WAL mode; when it does, for a checkpoint or a recovery.
const PATIENCE: Duration = Duration::from_secs(5);

/// A commit of this process that is not older than this is taken for the cause of an announcement. Other processes see
/// the commit itself, so the announcement need not be carried.
const CAUSE: Duration = Duration::from_secs(1);

/// Carries hints between the processes that share a file: a job that one process starts begins in another one within
/// some 25 milliseconds. Within the process hints are delivered at once. Clones share their subscribers.
///
/// It keeps the file open while somebody listens and for some seconds after that, unless the store is
/// [closed](SqliteState::close). Dropped, it and the store live on for as long as there are subscriptions.
///
/// ```
/// # use queuert::Client;
/// # use queuert_sqlite::{SqliteNotify, SqliteState};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), queuert::StateError> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("app.db");
/// let state = SqliteState::open(path).await?;
/// let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteNotify {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: SqliteState,
    subscribers: Lock<Subscribers>,
}

#[derive(Debug, Default)]
struct Subscribers {
    hub: Hub,
    watch: Phase,
    /// When the next job of a type is due, as far as the subscribers know.
    next_due: HashMap<TypeName, Timestamp>,
}

/// Where the watch is.
#[derive(Debug, Default)]
enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// It opens the file; these wait for it.
    Starting(Vec<oneshot::Sender<Result<(), StateError>>>),
    Looking,
}

impl SqliteNotify {
    /// Hints for clients and workers on this store.
    pub fn new(state: &SqliteState) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: state.clone(),
                subscribers: Lock::default(),
            }),
        }
    }

    async fn add(&self, topic: Topic) -> Result<Subscription, NotifyError> {
        // Nobody else has a database in memory open.
        let alone = self.shared.state.readers().is_none();
        loop {
            if !alone {
                // Before the subscription is there, so that everything announced from then on is later.
                self.watched().await?;
            }
            let known = match &topic {
                Topic::Jobs { types, .. } if !alone => self.shared.next_due(types).await.map_err(failed)?,
                _ => Vec::new(),
            };
            let mut subscribers = self.shared.lock();
            // It may have ended meanwhile, because nobody listened.
            if !alone && !matches!(subscribers.watch, Phase::Looking) {
                continue;
            }
            for (type_name, due) in known {
                // Whoever subscribes looks at the store next, and so knows at least this.
                subscribers.next_due.entry(type_name).or_insert(due);
            }
            let id = subscribers.hub.next_id();
            let guard = Unsubscribe {
                shared: Arc::clone(&self.shared),
                id,
                topic: topic.clone(),
            };
            let (sender, subscription) = Subscription::new(guard);
            subscribers.hub.add(id, topic, sender);
            return Ok(subscription);
        }
    }

    /// Waits until the watch looks at the file, and starts it if it is not there.
    async fn watched(&self) -> Result<(), NotifyError> {
        let (reply, answer) = oneshot::channel();
        let start = {
            let mut subscribers = self.shared.lock();
            match &mut subscribers.watch {
                Phase::Looking => return Ok(()),
                Phase::Starting(waiting) => {
                    waiting.push(reply);
                    false
                }
                Phase::Idle => {
                    subscribers.watch = Phase::Starting(vec![reply]);
                    true
                }
            }
        };
        if start {
            // Not under the lock: a thread that cannot be started drops its end right here, which takes the lock.
            Watching::start(&self.shared).map_err(failed)?;
        }
        match answer.await {
            Ok(started) => started.map_err(failed),
            Err(_) => Err(NotifyError::new(
                "the thread that looks at the file has ended; subscribe again",
            )),
        }
    }
}

impl NotifyAdapter for SqliteNotify {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async move {
            let left: Vec<Notice> = {
                let mut subscribers = self.shared.lock();
                notices
                    .iter()
                    .filter_map(|notice| subscribers.hub.tell(notice))
                    .collect()
            };
            let state = &self.shared.state;
            let seen_by_others = state.core().committed_within(CAUSE) || state.readers().is_none();
            if left.is_empty() || seen_by_others {
                return Ok(());
            }
            let core = Arc::clone(state.core());
            let left = Arc::new(left);
            let carried = state.write_quietly(move |db| {
                let core = Arc::clone(&core);
                let left = Arc::clone(&left);
                Box::pin(async move { core.insert_notices(db, batch(&left)).await })
            });
            carried.await.map_err(failed)
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(self.add(topic))
    }
}

impl Shared {
    fn lock(&self) -> LockGuard<'_, Subscribers> {
        self.subscribers.lock()
    }

    /// Tells the callers that wait for the watch how its start went.
    fn has_started(&self, started: &Result<(), StateError>) {
        let phase = match started {
            Ok(()) => Phase::Looking,
            Err(_) => Phase::Idle,
        };
        let before = std::mem::replace(&mut self.lock().watch, phase);
        if let Phase::Starting(waiting) = before {
            for reply in waiting {
                // A caller that does not wait any more need not know.
                let _ = reply.send(started.as_ref().copied().map_err(copy));
            }
        }
    }

    /// When the next job of each type is due, where there is one.
    async fn next_due(&self, types: &[TypeName]) -> Result<Vec<(TypeName, Timestamp)>, StateError> {
        let core = Arc::clone(self.state.core());
        let types = types.to_vec();
        let read = self.state.read(move |db| {
            let core = Arc::clone(&core);
            let types = types.clone();
            Box::pin(async move { watched_types(db, &core, &types).await })
        });
        let waiting = read.await?.into_iter();
        Ok(waiting
            .filter_map(|(name, _, due)| due.map(|due| (name, due)))
            .collect())
    }
}

/// Of each type: how many jobs are due, up to a number that is plenty, and when the next one is.
async fn watched_types(
    db: &mut Db<'_>,
    core: &Core,
    types: &[TypeName],
) -> Result<Vec<(TypeName, usize, Option<Timestamp>)>, StateError> {
    let names = Batch::of_texts(types.iter().map(TypeName::as_str));
    db.fetch(query(&core.sql.watched_types).bind(names), |found| {
        let count = usize::try_from(found.get::<i64>(1)?).unwrap_or_default();
        let due = found.get::<Option<i64>>(2)?.map(Timestamp::from_micros);
        Ok((TypeName::from(found.get::<String>(0)?), count, due))
    })
    .await
}

#[derive(Debug)]
struct Unsubscribe {
    shared: Arc<Shared>,
    id: u64,
    topic: Topic,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.shared.lock().hub.remove(self.id, &self.topic);
    }
}

/// With a file that is as it always was, this library opens it itself: a look takes some microseconds, of which the way to
/// a thread of sqlx and back would make hundreds.
fn open_eyes(file: &Path) -> Result<rusqlite::Connection, DbError> {
    // The last connection folds the log into the file, which one that may only read cannot.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
    let eyes = rusqlite::Connection::open_with_flags(file, flags)?;
    eyes.busy_timeout(PATIENCE)?;
    eyes.pragma_update(None, "query_only", "ON")?;
    Ok(eyes)
}

fn failed(error: StateError) -> NotifyError {
    NotifyError::new(
        "the database file that carries the wake-ups failed, so jobs are found by polling; the cause says what to do",
    )
    .with_source(error)
}

fn batch(notices: &[Notice]) -> Batch {
    let mut batch = Batch::new();
    for notice in notices {
        batch.row(|row| {
            match notice {
                Notice::JobsAvailable { type_name, count } => row
                    .number(0)
                    .raw("null")
                    .text(type_name.as_str())
                    .number(crate::core::count(*count)),
                Notice::ChainEnded(chain) => row.number(1).id(chain.as_uuid()).raw("null").number(1),
                Notice::LeaseLost(job) => row.number(2).id(job.as_uuid()).raw("null").number(1),
                // A kind that is not known here is skipped by whoever reads it.
                _ => row.number(-1).raw("null").raw("null").number(1),
            };
        });
    }
    batch
}

/// The thread that looks at the file for this process. However it ends, the next subscription starts another one.
struct Watching {
    shared: Weak<Shared>,
    /// Whether it has said so itself.
    done: bool,
}

impl Watching {
    fn start(shared: &Arc<Shared>) -> Result<(), StateError> {
        let failed = |error| {
            StateError::new(
                StateErrorKind::Transient,
                "no thread could be started to look at the file for wake-ups; check the limits of threads and memory of the process \
                 (`ulimit -u`)",
            )
            .with_source(error)
        };
        let watching = Self {
            shared: Arc::downgrade(shared),
            done: false,
        };
        let started = thread::start("queuert-watch", move |runtime| match runtime {
            Ok(runtime) => runtime.block_on(watching.run()),
            Err(error) => {
                if let Some(shared) = watching.shared.upgrade() {
                    shared.has_started(&Err(failed(error)));
                }
            }
        });
        started.map_err(failed)
    }

    async fn run(mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let started = Watch::start(&shared.state).await;
        let (watch, answer) = match started {
            Ok(watch) => (Some(watch), Ok(())),
            Err(error) => (None, Err(error)),
        };
        shared.has_started(&answer);
        drop(shared);
        if let Some(watch) = watch {
            watch.run(&self.shared).await;
        }
        self.done = true;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            let before = std::mem::take(&mut shared.lock().watch);
            // Not under the lock: it wakes those that wait.
            drop(before);
        }
    }
}

/// What looks at the file.
struct Watch {
    core: Arc<Core>,
    eyes: Eyes,
    /// The last notice that was read.
    notice: i64,
    /// The change counter at the last look; `None` before the first.
    version: Option<i64>,
    /// Dropped after `eyes`, which it counts as open.
    _open: Option<Open>,
}

/// A connection of its own: a pooled one would be missing for readers for as long as somebody listens.
enum Eyes {
    Own(rusqlite::Connection),
    /// Where only sqlx can open the file.
    Lent(SqliteConnection),
}

impl Eyes {
    fn db(&mut self) -> Db<'_> {
        match self {
            Self::Own(connection) => Db::Own(connection),
            Self::Lent(connection) => Db::Lent(connection),
        }
    }
}

impl Watch {
    async fn start(state: &SqliteState) -> Result<Self, StateError> {
        let Some(readers) = state.readers() else {
            return Err(corrupt("a database in memory is not shared"));
        };
        let mut open = state.core().connections.admit();
        if open.is_none() {
            return Err(translate(sqlx::Error::PoolClosed));
        }
        state.core().check_file()?;
        let mut eyes = match state.file() {
            Some(file) => Eyes::Own(open_eyes(file)?),
            None => {
                let connected = SqliteConnection::connect_with(&readers.connect_options()).await;
                let mut connection = connected.map_err(translate)?;
                if let Some(open) = open.take() {
                    track(&mut connection, open).await.map_err(translate)?;
                }
                Eyes::Lent(connection)
            }
        };
        let last = query(&state.core().sql.last_notice);
        let notice = eyes.db().first(last, |last| last.get(0)).await?;
        Ok(Self {
            core: Arc::clone(state.core()),
            eyes,
            notice: notice.unwrap_or_default(),
            version: None,
            _open: open,
        })
    }

    /// Looks until nobody listens any more.
    async fn run(mut self, shared: &Weak<Shared>) {
        let mut pause = INTERVAL;
        let mut needless = 0;
        let mut failing = false;
        loop {
            // A store that is closed waits for this connection.
            let _ = tokio::time::timeout(pause, self.core.connections.closed()).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            {
                let mut subscribers = shared.lock();
                needless = match subscribers.hub.is_empty() {
                    true => needless + 1,
                    false => 0,
                };
                if needless > LINGER || self.core.connections.is_closed() {
                    // Under the lock: the next subscription starts another one.
                    subscribers.watch = Phase::Idle;
                    return;
                }
            }
            let looked = match self.look(&shared).await {
                Ok(()) if failing => {
                    shared.lock().hub.resync();
                    Ok(())
                }
                Ok(()) => Ok(()),
                Err(lost) => match Self::start(&shared.state).await {
                    // Listening again first, then everybody looks.
                    Ok(again) => {
                        self = again;
                        let subscribers = shared.lock();
                        if !failing {
                            // It is over already, but it has happened, and notices may have been lost.
                            subscribers.hub.fail(&lost.to_string().into());
                        }
                        subscribers.hub.resync();
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            pause = match &looked {
                Ok(()) => INTERVAL,
                Err(_) => AFTER_FAILURE,
            };
            if let (false, Err(error)) = (failing, &looked) {
                shared.lock().hub.fail(&error.to_string().into());
            }
            failing = looked.is_err();
        }
    }

    /// The change counter, which moves when another connection commits.
    async fn counted(&mut self) -> Result<i64, StateError> {
        let version = self
            .eyes
            .db()
            .first(query(&self.core.sql.data_version), |found| found.get(0))
            .await?;
        version.ok_or_else(|| corrupt("the change counter is not there"))
    }

    async fn look(&mut self, shared: &Shared) -> Result<(), StateError> {
        self.core.check_file()?;
        let version = self.counted().await?;
        if self.version == Some(version) {
            return Ok(());
        }
        self.version = Some(version);
        self.read_notices(shared).await?;
        let (types, chains) = {
            let subscribers = shared.lock();
            (subscribers.hub.types(), subscribers.hub.chains())
        };
        if !types.is_empty() {
            self.look_for_jobs(shared, &types).await?;
        }
        if !chains.is_empty() {
            self.look_for_ends(shared, &chains).await?;
        }
        Ok(())
    }

    async fn read_notices(&mut self, shared: &Shared) -> Result<(), StateError> {
        let read = query(&self.core.sql.read_notices).bind(self.notice);
        let mut db = self.eyes.db();
        let rows = db.fetch(read, |found| {
            let notice = match found.get::<i64>(2)? {
                0 => Some(Notice::JobsAvailable {
                    type_name: TypeName::from(found.get::<String>(4)?),
                    count: usize::try_from(found.get::<i64>(5)?).unwrap_or(1),
                }),
                1 => Some(Notice::ChainEnded(ChainId::from_uuid(found.get(3)?))),
                2 => Some(Notice::LeaseLost(JobId::from_uuid(found.get(3)?))),
                _ => None,
            };
            Ok((found.get(0)?, found.get::<Uuid>(1)?, notice))
        });
        for (number, origin, notice) in rows.await? {
            self.notice = number;
            // What this process announced has been delivered here already.
            if let Some(notice) = notice.filter(|_| origin != self.core.origin) {
                shared.lock().hub.tell(&notice);
            }
        }
        Ok(())
    }

    /// Offers what is due, and wakes somebody where the next job is due sooner than was known.
    async fn look_for_jobs(&mut self, shared: &Shared, types: &[TypeName]) -> Result<(), StateError> {
        let now = clock::now();
        let found = watched_types(&mut self.eyes.db(), &self.core, types).await?;
        let mut subscribers = shared.lock();
        for (type_name, mut count, due) in found {
            match due {
                Some(due) => {
                    let known = subscribers.next_due.insert(type_name.clone(), due);
                    if due <= now || known.is_none_or(|known| due < known) {
                        count = count.max(1);
                    }
                }
                None => {
                    subscribers.next_due.remove(&type_name);
                }
            }
            if count > 0 {
                subscribers.hub.offer(&type_name, count);
            }
        }
        Ok(())
    }

    async fn look_for_ends(&mut self, shared: &Shared, chains: &[ChainId]) -> Result<(), StateError> {
        let statuses = self
            .core
            .chain_statuses(&mut self.eyes.db(), chains.iter().copied())
            .await?;
        let mut subscribers = shared.lock();
        for chain in chains {
            subscribers
                .hub
                .found_chain(*chain, statuses.get(chain).map(|status| status.is_open()));
        }
        Ok(())
    }
}
