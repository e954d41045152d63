//! A session that tells all others whether this process lives.
//!
//! It holds an advisory lock, whose number only this handle of the store uses. When the process dies, the operating system
//! closes its connections, the server ends the session, and the lock is free. The listener of a
//! [`PostgresNotify`](crate::PostgresNotify) on the pool of the same state is such a session, at no extra cost; where there
//! is none, the state opens one of its own. The number travels in the options of the pool's connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use sqlx::Executor;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::notify_backoff::Backoff;
use crate::notify_listener::SESSION;

/// The setting that carries the number of the lock.
pub(crate) const SETTING: &str = "queuert.lifeline";

/// How long to wait for a listener before a session of one's own is opened. Well below the grace of those who look.
const LISTENER_FIRST: Duration = Duration::from_millis(300);

/// The same before there ever was a session, which is before anybody looks, if there may be a listener.
const FIRST_LISTENER: Duration = Duration::from_secs(5);

/// How long a connection may take to be made.
const DEADLINE: Duration = Duration::from_secs(5);

/// How often the server is asked for an answer.
const CHECK: Duration = Duration::from_secs(10);

/// A session that has lived this long was a good one.
const GOOD: Duration = Duration::from_secs(5);

/// The lifelines of this process, by the number of their lock.
static LIFELINES: LazyLock<Mutex<HashMap<i64, Weak<Lifeline>>>> = LazyLock::new(Mutex::default);

/// The sessions of this process that hold one lock.
#[derive(Debug)]
pub(crate) struct Lifeline {
    key: i64,
    held: watch::Sender<Held>,
    /// Whether there may be a listener.
    announced: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// How many sessions hold it.
    pub(crate) sessions: usize,
    /// How often one has taken it.
    pub(crate) taken: u64,
    /// When there was last none after there had been one.
    pub(crate) lost_at: Option<Instant>,
}

impl Lifeline {
    /// The one with this number.
    pub(crate) fn of(key: i64) -> Arc<Self> {
        let mut lifelines = LIFELINES.lock().unwrap_or_else(PoisonError::into_inner);
        lifelines.retain(|_, lifeline| lifeline.strong_count() > 0);
        if let Some(lifeline) = lifelines.get(&key).and_then(Weak::upgrade) {
            return lifeline;
        }
        let lifeline = Arc::new(Self {
            key,
            held: watch::Sender::default(),
            announced: AtomicBool::new(false),
        });
        lifelines.insert(key, Arc::downgrade(&lifeline));
        lifeline
    }

    /// The one that connections with these options are to hold, if any.
    pub(crate) fn of_options(options: &PgConnectOptions) -> Option<Arc<Self>> {
        let options = options.get_options()?;
        let (_, rest) = options.split_once(SETTING)?;
        let number = rest.strip_prefix('=')?.split_whitespace().next()?;
        number.parse().ok().map(Self::of)
    }

    /// There may be a listener, whose session will do.
    pub(crate) fn announce_listener(&self) {
        self.announced.store(true, Ordering::SeqCst);
    }

    pub(crate) fn key(&self) -> i64 {
        self.key
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Held> {
        self.held.subscribe()
    }

    /// Takes the lock on a session, which has it until it ends.
    pub(crate) async fn take(self: &Arc<Self>, session: &mut PgListener) -> Result<Hold, sqlx::Error> {
        // Waits if somebody just looks, which takes no time.
        let take = sqlx::query("SELECT pg_advisory_lock_shared($1)").bind(self.key);
        session.execute(take.persistent(false)).await?;
        self.held.send_modify(|held| {
            held.sessions += 1;
            held.taken += 1;
        });
        Ok(Hold(Arc::clone(self)))
    }

    /// Sees to it that there is a session for as long as this future is polled.
    pub(crate) async fn keep(self: Arc<Self>, connect: PgConnectOptions) {
        let mut held = self.watch();
        let mut backoff = Backoff::default();
        loop {
            // Closed never: this value has the sender.
            let _ = held.wait_for(|held| held.sessions == 0).await;
            let first = held.borrow().taken == 0 && self.announced.load(Ordering::SeqCst);
            let patience = if first { FIRST_LISTENER } else { LISTENER_FIRST };
            let listener = held.wait_for(|held| held.sessions > 0);
            if tokio::time::timeout(patience, listener).await.is_ok() {
                continue;
            }
            let since = Instant::now();
            if let Ok(Ok((mut session, hold))) = tokio::time::timeout(DEADLINE, self.open(&connect)).await {
                let others = held.wait_for(|held| held.sessions > 1);
                tokio::select! {
                    biased;
                    _ = others => {}
                    () = lost(&mut session) => {}
                }
                drop((session, hold));
                if since.elapsed() >= GOOD {
                    backoff.reset();
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    async fn open(self: &Arc<Self>, connect: &PgConnectOptions) -> Result<(PgListener, Hold), sqlx::Error> {
        // A pool, because `PgListener` wants one; of one connection that nobody else uses. And that, because it notices at
        // once that its connection has ended.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(DEADLINE)
            .connect_lazy_with(connect.clone());
        let mut session = PgListener::connect_with(&pool).await?;
        session.eager_reconnect(false);
        // Settings that a server does not know are done without.
        let _ = session.execute(SESSION).await;
        let hold = self.take(&mut session).await?;
        Ok((session, hold))
    }
}

/// Returns when the session has ended, or does not answer.
async fn lost(session: &mut PgListener) {
    loop {
        match tokio::time::timeout(CHECK, session.try_recv()).await {
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None) | Err(_)) => return,
            Err(_) => {
                let answer = tokio::time::timeout(DEADLINE, session.execute("SELECT 1"));
                if !matches!(answer.await, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}

/// A session has the lock for as long as this exists. Dropped with the session, or after it.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Lifeline>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.held.send_modify(|held| {
            held.sessions = held.sessions.saturating_sub(1);
            if held.sessions == 0 {
                held.lost_at = Some(Instant::now());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_travels_in_the_options() {
        let plain = PgConnectOptions::new().options([("jit", "off")]);
        assert!(Lifeline::of_options(&plain).is_none());
        let key = fastrand::i64(..);
        let marked = plain
            .options([(SETTING, key.to_string())])
            .options([("search_path", "x")]);
        let lifeline = Lifeline::of_options(&marked).unwrap();
        assert_eq!(lifeline.key(), key);
        assert!(Arc::ptr_eq(&lifeline, &Lifeline::of(key)), "one per process");
    }

    #[test]
    fn it_is_lost_with_the_last_session() {
        let lifeline = Lifeline::of(fastrand::i64(..));
        let hold = || {
            lifeline.held.send_modify(|held| held.sessions += 1);
            Hold(Arc::clone(&lifeline))
        };
        let (one, other) = (hold(), hold());
        drop(one);
        assert_eq!(lifeline.watch().borrow().lost_at, None);
        drop(other);
        assert!(lifeline.watch().borrow().lost_at.is_some());
    }
}
