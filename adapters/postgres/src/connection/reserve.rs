//! Connections of the library's own beside the pool, for the time in which transactions hold all connections of the pool.
//!
//! Transactions of the application may hold every connection of the pool, and for as long as they like. Leases must be
//! renewed meanwhile, ends of attempts written, and wake-ups sent, or living attempts lose their jobs. So the library's own
//! statements, when the pool has no connection, use connections that no transaction of the application can have. They
//! are opened when they are first needed, and closed when they have not been needed for a while.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queuert::__task::spawn;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a caller waits for the pool before it asks the reserve: when all connections of the pool are in use, and when
/// the pool could open another one. A transaction that is at work gives its connection back much sooner.
const ALL_IN_USE: Duration = Duration::from_millis(25);
const MAY_OPEN: Duration = Duration::from_millis(250);

/// How long a connection is kept that is not needed.
const KEPT: Duration = Duration::from_secs(30);

/// How long a connection may take to be made.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long to wait after a connection could not be made: the server may have none left.
const PAUSE: Duration = Duration::from_millis(500);

/// Connections that are opened when the pool has none.
#[derive(Debug)]
pub(crate) struct Reserve {
    size: u32,
    pool: OnceLock<PgPool>,
    /// All but one of the connections are for statements that take turns here. The last one is for renewals, which are
    /// short and wait for no lock.
    turns: Arc<Semaphore>,
}

/// A connection of the reserve, and the turn of its borrower.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) connection: PoolConnection<Postgres>,
    pub(crate) turn: Option<OwnedSemaphorePermit>,
}

impl Reserve {
    /// Of so many connections for statements that take turns, and possibly one for renewals.
    pub(crate) fn new(turns: u32, renewals: bool) -> Self {
        Self {
            size: turns + u32::from(renewals),
            pool: OnceLock::new(),
            turns: Arc::new(Semaphore::new(turns as usize)),
        }
    }

    /// How long to wait for the pool first.
    pub(crate) fn hesitation(&self, pool_can_spare: bool) -> Duration {
        if pool_can_spare {
            return MAY_OPEN;
        }
        let has_idle = self.pool.get().is_some_and(|pool| pool.num_idle() > 0);
        if has_idle { Duration::ZERO } else { ALL_IN_USE }
    }

    /// A connection for a statement that takes its turn.
    pub(crate) async fn take_turn(&self, of: &PgPool) -> Reserved {
        match Arc::clone(&self.turns).acquire_owned().await {
            Ok(turn) => Reserved {
                connection: self.open(of).await,
                turn: Some(turn),
            },
            // Closed never: this value has the semaphore.
            Err(_) => std::future::pending().await,
        }
    }

    /// The connection for renewals.
    pub(crate) async fn renew(&self, of: &PgPool) -> Reserved {
        Reserved {
            connection: self.open(of).await,
            turn: None,
        }
    }

    /// Tries until there is one. Its caller waits for the pool at the same time.
    async fn open(&self, of: &PgPool) -> PoolConnection<Postgres> {
        let pool = self.pool.get_or_init(|| {
            // With what the application does on its connections when they are made.
            let options = of.options().clone().max_connections(self.size).min_connections(0);
            options
                .idle_timeout(KEPT)
                .acquire_timeout(DEADLINE)
                .connect_lazy_with(of.connect_options().as_ref().clone())
        });
        loop {
            // A task of its own: a caller that gives up leaves a connection that the next one finds, and not one that is
            // half made.
            match spawn(pool.acquire()).await {
                Ok(Ok(connection)) => return connection,
                Ok(Err(_)) => {
                    // The pool may have found out meanwhile that a pooler does not take the settings of its connections.
                    pool.set_connect_options(of.connect_options().as_ref().clone());
                    tokio::time::sleep(PAUSE).await;
                }
                // The runtime ends.
                Err(_) => std::future::pending().await,
            }
        }
    }

    pub(crate) async fn close(&self) {
        if let Some(pool) = self.pool.get() {
            pool.close().await;
        }
    }
}
