//! What all verbs share: the statements, the settings, and what the handle knows of its file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queuert::adapter::rank;
use queuert::{StateError, Timestamp};
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::connections::Connections;
use crate::connection::identity::OpenedFile;
use crate::liveness::Liveness;
use crate::statements::Statements;
use crate::writer::batch::PostponedRenewals;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) statements: Statements,
    ageing_step: Duration,
    /// Identifies this handle among all handles that write to the file, so that it ignores the hints that it wrote itself.
    pub(crate) origin: Uuid,
    pub(crate) liveness: Liveness,
    pub(crate) connections: Connections,
    /// The renewals that wait for the write lock.
    pub(crate) postponed: PostponedRenewals,
    /// `None` if the system cannot tell files apart.
    opened_file: Option<OpenedFile>,
    /// How many transactions were committed through this handle.
    commits: AtomicU64,
    opened_at: Instant,
    /// When the last transaction was committed, in milliseconds since `opened_at`, plus one; zero for never.
    last_commit: AtomicU64,
}

impl Store {
    pub(crate) fn new(
        prefix: &str,
        ageing_step: Duration,
        liveness: Liveness,
        opened_file: Option<OpenedFile>,
    ) -> Self {
        Self {
            statements: Statements::new(prefix),
            ageing_step,
            origin: Uuid::new_v4(),
            liveness,
            connections: Connections::new(),
            postponed: PostponedRenewals::default(),
            opened_file,
            commits: AtomicU64::new(0),
            opened_at: Instant::now(),
            last_commit: AtomicU64::new(0),
        }
    }

    /// Fails if the file at the path is not the one that was opened, or if there is none.
    pub(crate) fn check_file(&self) -> Result<(), StateError> {
        self.opened_file.as_ref().map_or(Ok(()), OpenedFile::check)
    }

    /// The same after all connections are closed.
    pub(crate) fn check_file_at_close(&self) -> Result<(), StateError> {
        self.opened_file.as_ref().map_or(Ok(()), OpenedFile::check_at_close)
    }

    /// Notes that a transaction was committed.
    pub(crate) fn committed(&self) {
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.last_commit.store(self.age() + 1, Ordering::SeqCst);
    }

    /// Whether a transaction was committed not longer ago than this.
    pub(crate) fn committed_within(&self, time: Duration) -> bool {
        match self.last_commit.load(Ordering::SeqCst) {
            0 => false,
            last => u128::from((self.age() + 1).saturating_sub(last)) <= time.as_millis(),
        }
    }

    /// Milliseconds since the store was opened.
    fn age(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// The place of a job among the jobs that wait.
    pub(crate) fn rank(&self, scheduled_at: Timestamp, priority: i16) -> i64 {
        rank(scheduled_at, priority, self.ageing_step)
    }
}

/// A count as SQLite stores it.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
