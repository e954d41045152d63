//! Counts the open connections of a store and the open transactions of its callers, so that closing the store can wait for
//! the last of them.
//!
//! SQLite folds the log into the file when the last connection closes. If two connections close at the same moment, each may
//! take the other for the last one, and the log stays. So closing waits until every connection of the store is closed, and
//! then looks for the log.

use sqlx::SqliteConnection;
use tokio::sync::watch;

/// The name of the collation that [`track`] registers. No statement uses it.
const TRACKER: &str = "queuert_open_connection";

/// The counts of one store. Clones share them.
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
    pub(crate) fn admit(&self) -> Option<OpenConnection> {
        let admitted = self.0.send_if_modified(|counts| {
            counts.open += usize::from(!counts.closed);
            !counts.closed
        });
        admitted.then(|| OpenConnection(self.clone()))
    }

    /// Counts a transaction of a caller until the result is dropped.
    pub(crate) fn lend(&self) -> OpenTransaction {
        self.0.send_modify(|counts| counts.transactions += 1);
        OpenTransaction(self.clone())
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

    /// Waits until the counts fulfil a condition.
    pub(crate) async fn until(&self, condition: impl Fn(&Counts) -> bool) {
        // It fails only if there is no sender, and this is one.
        let _ = self.0.subscribe().wait_for(condition).await;
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.0.borrow()
    }
}

/// Counts as an open connection until it is dropped, which must be after the connection was closed. A clone counts too.
#[derive(Debug)]
pub(crate) struct OpenConnection(Connections);

impl Clone for OpenConnection {
    fn clone(&self) -> Self {
        self.0.0.send_modify(|counts| counts.open += 1);
        Self(self.0.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.open -= 1);
    }
}

/// Counts as an open transaction of a caller until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenTransaction(Connections);

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.transactions -= 1);
    }
}

/// Drops `open` once SQLite has closed this connection. sqlx may close it on another thread, later than the value is
/// dropped; SQLite frees the collations of a connection after it has closed the file.
pub(crate) async fn track(connection: &mut SqliteConnection, open: OpenConnection) -> Result<(), sqlx::Error> {
    let mut handle = connection.lock_handle().await?;
    handle.create_collation(TRACKER, move |left, right| {
        let _held = &open;
        left.cmp(right)
    })
}
