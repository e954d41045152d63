//! Wake-ups between processes that share a file, without a server.
//!
//! SQLite counts the changes of a file. While a process has subscribers, one connection of it reads that counter at a short
//! interval, which costs a fraction of a percent of a core. When the counter has moved, one look at the indexes tells what
//! there is to do ([`watch`]). So writers pay nothing for other processes, and changes of any other program are noticed too.
//! What the indexes do not tell is written into the file ([`notices`]).

pub(crate) mod notices;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::{Lock, LockGuard};
use queuert::adapter::{BoxFuture, Notice, NotifyAdapter, Subscriber, Subscribers, Subscription, Topic};
use queuert::{NotifyError, StateError, Timestamp, TypeName};
use tokio::sync::oneshot;

use crate::connection::{Connection, query};
use crate::error::copy;
use crate::state::SqliteState;
use crate::statements::json_rows::JsonRows;
use crate::store::Store;

/// An announcement belongs to the last commit of this process if that is not older than this. Other processes see the commit
/// itself, so the announcement need not be written.
const CAUSE: Duration = Duration::from_secs(1);

/// Carries hints between the processes that share a file: a job that one process starts begins in another one within
/// some 25 milliseconds. Within the process hints are delivered at once. Clones share their subscribers.
///
/// It keeps the file open while it has subscribers and for some seconds after that, unless the store is
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
    listeners: Lock<Listeners>,
}

#[derive(Debug, Default)]
struct Listeners {
    subscribers: Subscribers,
    watch: WatchPhase,
    /// When the next job of a type is due, as far as the subscribers know.
    next_due: HashMap<TypeName, Timestamp>,
}

/// Whether the file is watched.
#[derive(Debug, Default)]
enum WatchPhase {
    #[default]
    Idle,
    /// The thread opens the file, and answers these callers then.
    Starting(Vec<oneshot::Sender<Result<(), StateError>>>),
    Watching,
}

impl SqliteNotify {
    /// Hints for clients and workers on this store.
    pub fn new(state: &SqliteState) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: state.clone(),
                listeners: Lock::default(),
            }),
        }
    }

    async fn add(&self, topic: Topic) -> Result<Subscription, NotifyError> {
        // No other process can open a database in memory.
        let alone = self.shared.state.readers().is_none();
        loop {
            if !alone {
                // Before the subscription is added, so that it misses nothing that is announced from then on.
                self.start_watch().await?;
            }
            let known = match &topic {
                Topic::Jobs { types, .. } if !alone => self.shared.next_due(types).await.map_err(failed)?,
                _ => Vec::new(),
            };
            let mut listeners = self.shared.lock();
            // The watch may have ended meanwhile, because there were no subscribers.
            if !alone && !matches!(listeners.watch, WatchPhase::Watching) {
                continue;
            }
            for (type_name, due) in known {
                // The subscriber looks at the store after this, and so knows of this job at least.
                listeners.next_due.entry(type_name).or_insert(due);
            }
            let (_, subscription) = listeners.subscribers.add(topic, |subscriber| Unsubscribe {
                shared: Arc::clone(&self.shared),
                subscriber,
            });
            return Ok(subscription);
        }
    }

    /// Waits until the file is watched, and starts the thread that does it if there is none.
    async fn start_watch(&self) -> Result<(), NotifyError> {
        let (reply, answer) = oneshot::channel();
        let start = {
            let mut listeners = self.shared.lock();
            match &mut listeners.watch {
                WatchPhase::Watching => return Ok(()),
                WatchPhase::Starting(callers) => {
                    callers.push(reply);
                    false
                }
                WatchPhase::Idle => {
                    listeners.watch = WatchPhase::Starting(vec![reply]);
                    true
                }
            }
        };
        if start {
            // Not under the lock: if the thread cannot be started, its guard is dropped here, and takes the lock.
            watch::start(&self.shared).map_err(failed)?;
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
                let mut listeners = self.shared.lock();
                let subscribers = &mut listeners.subscribers;
                notices.iter().filter_map(|notice| subscribers.tell(notice)).collect()
            };
            let state = &self.shared.state;
            let seen_by_others = state.store().committed_within(CAUSE) || state.readers().is_none();
            if left.is_empty() || seen_by_others {
                return Ok(());
            }
            let store = Arc::clone(state.store());
            let left = Arc::new(left);
            let written = state.write_quietly(move |connection| {
                let store = Arc::clone(&store);
                let left = Arc::clone(&left);
                Box::pin(async move { notices::insert(connection, &store, left.iter()).await })
            });
            written.await.map_err(failed)
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(self.add(topic))
    }
}

impl Shared {
    fn lock(&self) -> LockGuard<'_, Listeners> {
        self.listeners.lock()
    }

    /// Tells the callers that wait for the watch whether it has started.
    fn watch_has_started(&self, started: &Result<(), StateError>) {
        let phase = match started {
            Ok(()) => WatchPhase::Watching,
            Err(_) => WatchPhase::Idle,
        };
        let before = std::mem::replace(&mut self.lock().watch, phase);
        if let WatchPhase::Starting(callers) = before {
            for reply in callers {
                // A caller may have stopped waiting.
                let _ = reply.send(started.as_ref().copied().map_err(copy));
            }
        }
    }

    /// When the next job of each type is due, for types that have one.
    async fn next_due(&self, types: &[TypeName]) -> Result<Vec<(TypeName, Timestamp)>, StateError> {
        let store = Arc::clone(self.state.store());
        let types = types.to_vec();
        let read = self.state.read(move |connection| {
            let store = Arc::clone(&store);
            let types = types.clone();
            Box::pin(async move { watched_types(connection, &store, &types).await })
        });
        let found = read.await?.into_iter();
        Ok(found
            .filter_map(|watched| watched.next_due.map(|due| (watched.type_name, due)))
            .collect())
    }
}

/// What the indexes say of a type.
struct WatchedType {
    type_name: TypeName,
    /// How many jobs are due, up to a limit.
    ready: usize,
    /// When the next one of the other jobs is due.
    next_due: Option<Timestamp>,
}

async fn watched_types(
    connection: &mut Connection<'_>,
    store: &Store,
    types: &[TypeName],
) -> Result<Vec<WatchedType>, StateError> {
    let names = JsonRows::of_texts(types.iter().map(TypeName::as_str));
    connection
        .fetch(query(&store.statements.watched_types).bind(names), |found| {
            Ok(WatchedType {
                type_name: TypeName::from(found.get::<String>("type")?),
                ready: usize::try_from(found.get::<i64>("ready")?).unwrap_or_default(),
                next_due: found.get::<Option<i64>>("scheduled_at")?.map(Timestamp::from_micros),
            })
        })
        .await
}

#[derive(Debug)]
struct Unsubscribe {
    shared: Arc<Shared>,
    subscriber: Subscriber,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.shared.lock().subscribers.remove(&self.subscriber);
    }
}

fn failed(error: StateError) -> NotifyError {
    NotifyError::new(
        "the database file that carries the wake-ups failed, so jobs are found by polling; the cause says what to do",
    )
    .with_source(error)
}
