//! The lock that tells all other processes that this one lives.
//!
//! A session of this process holds an advisory lock whose number only this handle of the store uses. When the process dies,
//! the operating system closes its connections, the server ends the session, and the lock is free. The listener of a
//! [`PostgresNotify`](crate::PostgresNotify) that was made from the same state is such a session, at no extra cost; where there
//! is none, the state opens a session of its own. The connections of the pool carry the number in their options, which tells
//! them from sessions that a pooler lends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor, PgExecutor, Row};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::retry_pauses;
use crate::statements::{plain, text};

/// The setting that carries the number of the lock.
pub(crate) const SETTING: &str = "queuert.session_lock";

/// How long to wait for a listener, if there may be one, before a session is opened for the lock alone. Well below the grace of
/// the processes that look, because the first claim waits for it.
const LISTENER_FIRST: Duration = Duration::from_millis(300);

/// How long a connection may take to be made.
const DEADLINE: Duration = Duration::from_secs(5);

/// How often the server is asked for an answer.
const CHECK: Duration = Duration::from_secs(10);

/// A session that has lived this long was a good one.
const GOOD: Duration = Duration::from_secs(5);

/// The sessions of this process that hold one lock.
#[derive(Debug)]
pub(crate) struct SessionLock {
    key: i64,
    held: watch::Sender<Held>,
    /// Whether there may be a listener.
    announced: AtomicBool,
    /// Whether a connection of this handle was found to lead to a session that a pooler lends to several clients.
    pooled: watch::Sender<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// How many sessions hold the lock.
    pub(crate) sessions: usize,
    /// How often a session has taken the lock.
    pub(crate) taken: u64,
    /// When the last session that held the lock was lost.
    pub(crate) lost_at: Option<Instant>,
}

impl SessionLock {
    /// A lock with this number, which no session holds yet.
    pub(crate) fn new(key: i64) -> Self {
        Self {
            key,
            held: watch::Sender::default(),
            announced: AtomicBool::new(false),
            pooled: watch::Sender::default(),
        }
    }

    /// Takes note that there may be a listener, whose session can hold the lock.
    pub(crate) fn announce_listener(&self) {
        self.announced.store(true, Ordering::SeqCst);
    }

    /// Whether there is a pooler between this process and the server.
    pub(crate) fn is_pooled(&self) -> bool {
        *self.pooled.borrow()
    }

    /// Takes note of a pooler, for good: one that has gone may come back with the next connection.
    pub(crate) fn found_pooler(&self) {
        self.pooled.send_replace(true);
    }

    /// Waits until a pooler is found.
    pub(crate) async fn pooled(&self) {
        // Never closed: this value has the sender.
        let _ = self.pooled.subscribe().wait_for(|pooled| *pooled).await;
    }

    /// Checks that a new session is this process's own, and takes note if it is not.
    pub(crate) async fn check(&self, session: impl PgExecutor<'_>) -> Result<(), sqlx::Error> {
        if self.is_pooled() {
            return Ok(());
        }
        // As one plain message, which no pooler tears apart or has to remember.
        let found = sqlx::raw_sql(plain(text::IS_OWN_SESSION)).fetch_one(session).await?;
        let number: Option<String> = found.try_get("key")?;
        let source: Option<String> = found.try_get("source")?;
        if number != Some(self.key.to_string()) || source.as_deref() != Some("client") {
            self.found_pooler();
        }
        Ok(())
    }

    pub(crate) fn key(&self) -> i64 {
        self.key
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Held> {
        self.held.subscribe()
    }

    /// Takes the lock on a session, which has it until it ends.
    pub(crate) async fn take(self: &Arc<Self>, session: &mut PgListener) -> Result<Hold, sqlx::Error> {
        self.check(&mut *session).await?;
        if self.is_pooled() {
            // The lock would belong to the client that the pooler lends the session to next, and outlive this process.
            return Err(sqlx::Error::Protocol("the session belongs to a pooler".to_owned()));
        }
        let take = sqlx::query(plain(text::TAKE_SESSION_LOCK)).bind(self.key);
        session.execute(take.persistent(false)).await?;
        self.held.send_modify(|held| {
            held.sessions += 1;
            held.taken += 1;
        });
        Ok(Hold(Arc::clone(self)))
    }

    /// Keeps a session that holds the lock for as long as this future is polled. Returns if a pooler is found.
    pub(crate) async fn keep(self: Arc<Self>, connect: PgConnectOptions) {
        let mut held = self.watch();
        let mut backoff = retry_pauses();
        while !self.is_pooled() {
            // Never closed: this value has the sender.
            let _ = held.wait_for(|held| held.sessions == 0).await;
            let patience = if self.announced.load(Ordering::SeqCst) {
                LISTENER_FIRST
            } else {
                Duration::ZERO
            };
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
        // A `PgListener`, because it notices at once that its connection has ended. It needs a pool: one of a single connection.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(DEADLINE)
            .connect_lazy_with(connect.clone());
        let mut session = PgListener::connect_with(&pool).await?;
        session.eager_reconnect(false);
        // Settings that a server does not know are done without.
        let _ = session.execute(plain(text::LISTENER_SETTINGS)).await;
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

/// A session has the lock for as long as this value exists. Dropped with the session, or after it.
#[derive(Debug)]
pub(crate) struct Hold(Arc<SessionLock>);

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
    fn it_is_lost_with_the_last_session() {
        let session_lock = Arc::new(SessionLock::new(fastrand::i64(..)));
        let hold = || {
            session_lock.held.send_modify(|held| held.sessions += 1);
            Hold(Arc::clone(&session_lock))
        };
        let (one, other) = (hold(), hold());
        drop(one);
        assert_eq!(session_lock.watch().borrow().lost_at, None);
        drop(other);
        assert!(session_lock.watch().borrow().lost_at.is_some());
    }
}
