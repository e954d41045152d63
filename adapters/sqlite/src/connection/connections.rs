//! Counts the open connections of a store and the open transactions of its callers, so that closing the store can wait for
//! the last of them.
//!
//! SQLite folds the log into the file when the last connection closes. Two connections that close at the same moment each
//! take the other for the last one, and the log stays. So closing waits until every connection of the store is closed, and
//! then looks at the log.

use sqlx::SqliteConnection;
use tokio::sync::watch;

/// The name of the collation that [`track`] registers. No statement uses it.
const TRACKER: &str = "queuert_open_connection";

/// Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Connections(watch::Sender<Counts>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Open connections, and writers, which may still open one.
    pub(crate) open: usize,
    /// Open transactions of callers.
    pub(crate) transactions: usize,
    closed: bool,
}

impl Connections {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Counts::default()))
    }

    /// The permission to open a connection; `None` once the store is closed.
    pub(crate) fn admit(&self) -> Option<Open> {
        let admitted = self.0.send_if_modified(|counts| {
            counts.open += usize::from(!counts.closed);
            !counts.closed
        });
        admitted.then(|| Open(self.clone()))
    }

    /// Counts a transaction of a caller until the result is dropped.
    pub(crate) fn lend(&self) -> Lent {
        self.0.send_modify(|counts| counts.transactions += 1);
        Lent(self.clone())
    }

    /// Admits no new connection from now on.
    pub(crate) fn close(&self) {
        self.0.send_modify(|counts| counts.closed = true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// Waits until the store is closed to new connections.
    pub(crate) async fn closed(&self) {
        self.until(|counts| counts.closed).await;
    }

    /// Waits until the counts are like this.
    pub(crate) async fn until(&self, like_this: impl Fn(&Counts) -> bool) {
        // It fails only without a sender, which is here.
        let _ = self.0.subscribe().wait_for(like_this).await;
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.0.borrow()
    }
}

/// Counts as an open connection until it is dropped: drop it after the connection has been closed. A clone counts too.
#[derive(Debug)]
pub(crate) struct Open(Connections);

impl Clone for Open {
    fn clone(&self) -> Self {
        self.0.0.send_modify(|counts| counts.open += 1);
        Self(self.0.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.open -= 1);
    }
}

/// Counts as an open transaction of a caller until it is dropped.
#[derive(Debug)]
pub(crate) struct Lent(Connections);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.transactions -= 1);
    }
}

/// Drops `open` once SQLite has closed this connection, which sqlx may do on a thread of its own, later than the value
/// is dropped. SQLite frees the collations of a connection after it has closed the file.
pub(crate) async fn track(connection: &mut SqliteConnection, open: Open) -> Result<(), sqlx::Error> {
    let mut handle = connection.lock_handle().await?;
    handle.create_collation(TRACKER, move |left, right| {
        let _held = &open;
        left.cmp(right)
    })
}
