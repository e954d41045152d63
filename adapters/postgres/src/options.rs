//! Settings.

use std::time::Duration;

use queuert::StateError;
use queuert::adapter::AGEING_STEP;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use crate::connection::connect;
use crate::connection::url;
use crate::error::misconfigured;
use crate::migrate::check_name;
use crate::state::PostgresState;
use crate::upkeep::Retention;

/// Settings of a [`PostgresState`], made with [`PostgresState::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresOptions {
    pub(crate) schema: String,
    pub(crate) ageing_step: Duration,
    pub(crate) max_connections: u32,
    pub(crate) acquire_timeout: Duration,
    pub(crate) pooler: bool,
    pub(crate) migrate: bool,
    pub(crate) retention: Retention,
}

/// Ranks are whole numbers of microseconds; a longer step could overflow them.
const LONGEST_AGEING_STEP: Duration = Duration::from_secs(365 * 86_400);

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "queuert".to_owned(),
            ageing_step: AGEING_STEP,
            max_connections: 11,
            acquire_timeout: Duration::from_secs(30),
            pooler: false,
            migrate: true,
            retention: Retention::forever(),
        }
    }
}

impl PostgresOptions {
    /// The schema that holds the tables. Any name will do, it is quoted. Default: `queuert`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// How much waiting one step of priority is worth, for jobs that are written from now on; at most a year. All
    /// processes on one database should agree. Default: [`AGEING_STEP`].
    pub fn ageing_step(mut self, step: Duration) -> Self {
        self.ageing_step = step.min(LONGEST_AGEING_STEP);
        self
    }

    /// How many connections the pool of [`connect`](Self::connect) opens, at most. Workers whose processors need no
    /// transaction use three, whatever their concurrency, upkeep included, and announcements a fourth; the others are for
    /// transactions, and for calls of the client's that are under way at the same time.
    ///
    /// Transactions get all connections but one: with the last one the library renews leases, writes the ends of attempts,
    /// claims jobs and sends wake-ups. In a pool of one connection transactions take turns with that work. While a transaction
    /// holds the connection, the library opens up to three more beside the pool, and closes them half a minute after they were
    /// last needed. Default: 11, of which ten are for transactions.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections.max(1);
        self
    }

    /// How long to wait for a free connection, before a transient error that says what may hold the connections. Default: 30
    /// seconds.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// Says that there is a pooler in transaction mode in front of the server, such as PgBouncer, if it cannot be told
    /// from its answers. Nothing is then kept on a connection from one transaction to the next: no prepared statements
    /// and no settings. Default: found out by [`connect`](Self::connect).
    pub fn pooler(mut self) -> Self {
        self.pooler = true;
        self
    }

    /// Leaves the schema alone: it must be up to date, by [`PostgresState::migrations`]. For roles that may not create
    /// tables. Default: it is created and brought up to date.
    pub fn without_migrating(mut self) -> Self {
        self.migrate = false;
        self
    }

    /// How long chains that have ended are kept; running workers delete those that are older. All processes on one
    /// database should agree. Default: for ever.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Connects, and brings the schema up to date.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](queuert::StateErrorKind::Misconfigured) if the URL is wrong, the server refuses the user or the
    /// password, there is no such database, the server is older than Postgres 14, the role lacks rights (the message
    /// says which `GRANT` to run), or the schema is newer than this program. [`Transient`](queuert::StateErrorKind::Transient)
    /// if the server cannot be reached or has no connection left.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves a schema with all of a migration or nothing of it; the next call goes on with those that are
    /// missing.
    pub async fn connect(self, url: &str) -> Result<PostgresState, StateError> {
        let unreadable =
            || misconfigured("the URL cannot be read; it looks like postgres://user:password@host:5432/database");
        self.connect_with(url::read(url).ok_or_else(unreadable)?).await
    }

    /// The same with options of sqlx's in place of a URL.
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// See [`connect`](Self::connect).
    pub async fn connect_with(self, options: PgConnectOptions) -> Result<PostgresState, StateError> {
        check_name(&self.schema)?;
        connect::connect(self, options).await
    }

    /// Takes connections from the application's pool, and brings the schema up to date. Nothing is kept on these
    /// connections from one transaction to the next, so every statement is planned again: prefer
    /// [`connect`](Self::connect) for workers, which is faster under load.
    ///
    /// The application may hold all connections of its pool. Leases are renewed and attempts ended all the same, on a
    /// reserve of up to two connections of the library's own, and one for wake-ups, opened with the pool's options only
    /// then; see [`max_connections`](Self::max_connections), which otherwise does not matter here.
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// See [`connect`](Self::connect).
    pub async fn from_pool(self, pool: PgPool) -> Result<PostgresState, StateError> {
        check_name(&self.schema)?;
        connect::adopt(self, pool).await
    }
}
