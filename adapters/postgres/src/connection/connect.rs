//! How connections are made, and what is asked of the server first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queuert::__task::Lock;
use queuert::StateError;
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Row, SqlStr};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use crate::connection::budget::Budget;
use crate::connection::hidden::Hidden;
use crate::connection::kept_for_library::KeptForLibrary;
use crate::connection::reserve::open_beside;
use crate::connection::settings::{Begins, CallerSettings, ISOLATION, TUNING, Usual};
use crate::error::{has_code, misconfigured, translate};
use crate::liveness::Liveness;
use crate::liveness::session_lock::{self, SessionLock};
use crate::migrate;
use crate::options::PostgresOptions;
use crate::state::PostgresState;
use crate::statements::{plain, text};
use crate::store::Store;
use crate::upkeep::Upkeep;

/// The oldest server that has what the statements use.
const OLDEST_SERVER: i32 = 140_000;

/// With these the server notices within half a minute that the machine at the other end has vanished, whether it waits for
/// a statement (keepalives) or has sent an answer (user timeout, in milliseconds).
pub(crate) const KEEPALIVES: [(&str, &str); 4] = [
    ("tcp_keepalives_idle", "15"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "30000"),
];

/// Connections that were used within this time are taken to be alive.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// How long a connection that another runtime has made may take to answer.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// How the library's own statements run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On connections of its own: prepared, with settings that last.
    Own,
    /// On connections that may belong to another server process in the next transaction: in transactions, with settings
    /// that end with them.
    Guarded,
}

/// Connections, and how to use them.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) pool: PgPool,
    /// The same connections, for the library's own work.
    pub(crate) budget: Budget,
    sessions: Sessions,
    own: Begins,
    guarded: Begins,
}

impl Access {
    fn new(pool: PgPool, sessions: Sessions, own: Begins, guarded: Begins, kept: Option<Arc<KeptForLibrary>>) -> Self {
        Self {
            budget: Budget::new(pool.clone(), sessions.clone(), kept),
            pool,
            sessions,
            own,
            guarded,
        }
    }

    /// How statements run. Ask with the connection in hand: a new one may have been found to lead to a pooler.
    pub(crate) fn mode(&self) -> Mode {
        if self.sessions.are_own() {
            Mode::Own
        } else {
            Mode::Guarded
        }
    }

    fn begins(&self) -> &Begins {
        match self.mode() {
            Mode::Own => &self.own,
            Mode::Guarded => &self.guarded,
        }
    }

    pub(crate) fn begin_for_caller(&self) -> SqlStr {
        self.begins().for_caller.clone()
    }

    pub(crate) fn begin_for_library(&self) -> SqlStr {
        self.begins().for_library.clone()
    }
}

/// Whether the server's sessions behind the connections of a pool are the pool's own. Each new connection is checked, because
/// a pooler may come between a living process and its server: by a failover, or by a change of the name's address.
#[derive(Clone, Debug)]
pub(crate) struct Sessions(Option<Arc<Tuned>>);

#[derive(Debug)]
struct Tuned {
    session_lock: Arc<SessionLock>,
    /// `None` if the settings of the library are the usual ones.
    caller_settings: Option<CallerSettings>,
    /// What connections are made with where there is a pooler.
    plain: Hidden<PgConnectOptions>,
    is_plain: AtomicBool,
}

impl Sessions {
    /// Sessions of a pool that may lead to a pooler, so that none is taken for the library's own.
    pub(crate) const fn of_pooler() -> Self {
        Self(None)
    }

    /// The session lock whose number the connections carry, unless a pooler was found.
    fn session_lock(&self) -> Option<Arc<SessionLock>> {
        let tuned = self.0.as_ref().filter(|tuned| !tuned.session_lock.is_pooled())?;
        Some(Arc::clone(&tuned.session_lock))
    }

    fn are_own(&self) -> bool {
        self.0.as_ref().is_some_and(|tuned| !tuned.session_lock.is_pooled())
    }

    /// The settings that a session of the library's own must have in transactions of the caller's, if they differ from those
    /// of the library.
    pub(crate) fn caller_settings(&self) -> Option<&CallerSettings> {
        let tuned = self.0.as_ref().filter(|tuned| !tuned.session_lock.is_pooled())?;
        tuned.caller_settings.as_ref()
    }

    /// Looks at the answer of a pool that was asked for a connection, and has the next ones made without what a pooler does
    /// not take. Whether it should be asked again.
    pub(crate) fn heard<T>(&self, answer: &Result<T, sqlx::Error>, pool: &PgPool) -> bool {
        let Some(tuned) = &self.0 else {
            return false;
        };
        // "unsupported startup parameter": a pooler's answer, never the server's.
        let refused = matches!(answer, Err(error) if has_code(error, "08P01"));
        if refused {
            tuned.session_lock.found_pooler();
        }
        if !tuned.session_lock.is_pooled() || tuned.is_plain.swap(true, Ordering::SeqCst) {
            return false;
        }
        pool.set_connect_options(tuned.plain.clone().0);
        refused
    }
}

pub(crate) async fn connect(settings: PostgresOptions, options: PgConnectOptions) -> Result<PostgresState, StateError> {
    // Not sent at all: a pooler would refuse it, and nothing here is a float.
    let mut options = options.extra_float_digits(None);
    if options.get_application_name().is_none() {
        options = options.application_name("queuert");
    }
    let mut first = first_connection(&settings, &options).await?;
    let usual = inspect(&mut first).await?;
    migrate::install(&mut first, &settings.schema, settings.migrate).await?;
    first.close().await.map_err(translate)?;
    let plain = options.clone().statement_cache_capacity(0);
    if !settings.pooler
        && let Some((pool, session_lock)) = tuned_pool(&settings, &options).await?
    {
        let own = Begins::own(&usual);
        let sessions = Sessions(Some(Arc::new(Tuned {
            session_lock,
            caller_settings: CallerSettings::of(&usual),
            plain: Hidden(plain),
            is_plain: AtomicBool::new(false),
        })));
        open_both(&pool).await;
        let kept = KeptForLibrary::of(&pool);
        return Ok(PostgresState::new(
            &settings,
            Access::new(pool, sessions, own, Begins::guarded(&usual), kept),
        ));
    }
    let pool = pool_options(&settings).connect_lazy_with(plain);
    let kept = KeptForLibrary::of(&pool);
    Ok(PostgresState::new(&settings, guarded(pool, &usual, kept)))
}

/// Opens the second connection of a pool of two. The library needs one beside that of a transaction, and the session lock,
/// which the library can do without, may take the last connection that the server has left.
async fn open_both(pool: &PgPool) {
    if pool.options().get_max_connections() == 2 {
        let both = async { (pool.acquire().await, pool.acquire().await) };
        // Without the second connection the library still works, but more slowly.
        drop(tokio::time::timeout(SIGN_OF_LIFE, both).await);
    }
}

/// The connection on which the server is inspected and the schema is made.
async fn first_connection(settings: &PostgresOptions, options: &PgConnectOptions) -> Result<PgConnection, StateError> {
    open_beside(options, settings.pooler, settings.acquire_timeout)
        .await
        .map_err(translate)
}

/// The keepalives that the application has not set itself in the options of its connections.
pub(crate) fn missing_keepalives(options: &PgConnectOptions) -> Vec<(&'static str, &'static str)> {
    let said = options.get_options().unwrap_or_default();
    KEEPALIVES
        .into_iter()
        .filter(|(name, _)| !said.contains(name))
        .collect()
}

pub(crate) async fn adopt(settings: PostgresOptions, pool: PgPool) -> Result<PostgresState, StateError> {
    let mut connection = ClosedUnlessKept(Some(pool.acquire().await.map_err(translate)?));
    let usual = inspect(connection.get()).await?;
    migrate::install(connection.get(), &settings.schema, settings.migrate).await?;
    connection.keep();
    Ok(PostgresState::new(&settings, guarded(pool, &usual, None)))
}

/// A connection of the application's pool that is closed unless it is given back on purpose. A future that is dropped while
/// it begins a transaction leaves a `BEGIN` of which the driver knows nothing: the pool would lend the connection to the
/// application, whose statements would then be in a transaction that no one commits.
struct ClosedUnlessKept(Option<PoolConnection<Postgres>>);

impl ClosedUnlessKept {
    fn get(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("the connection is there until it is given back")
    }

    /// Gives it back to the pool.
    fn keep(mut self) {
        drop(self.0.take());
    }
}

impl Drop for ClosedUnlessKept {
    fn drop(&mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

fn guarded(pool: PgPool, usual: &Usual, kept: Option<Arc<KeptForLibrary>>) -> Access {
    Access::new(
        pool,
        Sessions::of_pooler(),
        Begins::guarded(usual),
        Begins::guarded(usual),
        kept,
    )
}

/// The runtime that uses a pool, and since when.
#[derive(Debug)]
struct Home {
    runtime: Id,
    since: Instant,
}

impl Home {
    fn here() -> Self {
        Self {
            runtime: Handle::current().id(),
            since: Instant::now(),
        }
    }

    /// How long the current runtime has been using the pool without another one in between.
    fn settled(home: &Lock<Self>) -> Duration {
        let mut home = home.lock();
        if home.runtime != Handle::current().id() {
            *home = Self::here();
        }
        home.since.elapsed()
    }
}

/// Whether the runtime that has made a connection still drives it. Without that runtime a connection can send, and can read an
/// answer that is there already when it looks, as a quick one may be on a busy machine. It cannot wait for one. So the second
/// answer takes the server a while.
pub(crate) async fn hears(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.ping().await?;
    sqlx::raw_sql(plain(text::ANSWERS_LATE)).execute(connection).await?;
    Ok(())
}

fn pool_options(settings: &PostgresOptions) -> PoolOptions<Postgres> {
    pool_options_with(settings, None)
}

/// With a look at every new connection, if there is a session_lock: a pool takes one hook only.
fn pool_options_with(settings: &PostgresOptions, session_lock: Option<Arc<SessionLock>>) -> PoolOptions<Postgres> {
    let home = Arc::new(Lock::new(Home::here()));
    let known = Arc::clone(&home);
    PgPoolOptions::new()
        .max_connections(settings.max_connections)
        .acquire_timeout(settings.acquire_timeout)
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Home::settled(&known);
            let session_lock = session_lock.clone();
            Box::pin(async move {
                match session_lock {
                    Some(session_lock) => session_lock.check(connection).await,
                    None => Ok(()),
                }
            })
        })
        // Connections in use are not tested, which saves a round trip. An idle connection may have died. A connection that was
        // made on another runtime has died with it, or receives no answer while that runtime stands still.
        .before_acquire(move |connection, meta| {
            let may_be_elsewhere = meta.age >= Home::settled(&home);
            Box::pin(async move {
                if may_be_elsewhere {
                    let answers = tokio::time::timeout(SIGN_OF_LIFE, hears(connection)).await;
                    return Ok(answers.is_ok_and(|answer| answer.is_ok()));
                }
                if meta.idle_for >= FRESH {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
}

/// A pool with the settings above, or `None` if there is a pooler between here and the server.
async fn tuned_pool(
    settings: &PostgresOptions,
    options: &PgConnectOptions,
) -> Result<Option<(PgPool, Arc<SessionLock>)>, StateError> {
    let session_lock = Arc::new(SessionLock::new(fastrand::i64(..)));
    let tuned = options
        .clone()
        .options(TUNING.into_iter().chain([ISOLATION]).chain(missing_keepalives(options)))
        .options([(session_lock::SETTING, session_lock.key())])
        .statement_cache_capacity(500);
    let pool = pool_options_with(settings, Some(Arc::clone(&session_lock)));
    let pool = match pool.connect_with(tuned).await {
        Ok(pool) => pool,
        // "unsupported startup parameter", a pooler's answer and never the server's; or another pooler's words for that.
        Err(error) if has_code(&error, "08P01") || has_code(&error, "0A000") => return Ok(None),
        Err(error) => return Err(translate(error)),
    };
    if session_lock.is_pooled() {
        pool.close().await;
        return Ok(None);
    }
    Ok(Some((pool, session_lock)))
}

/// Checks the server, and asks for its settings.
pub(super) async fn inspect(connection: &mut PgConnection) -> Result<Usual, StateError> {
    let row = sqlx::raw_sql(plain(text::INSPECT))
        .fetch_one(connection)
        .await
        .map_err(|error| {
            if has_code(&error, "42704") {
                too_old("of an unknown version").with_source(error)
            } else {
                translate(error)
            }
        })?;
    let setting = |name: &str| row.try_get::<String, _>(name).map_err(translate);
    let number: i32 = setting("version_number")?.parse().unwrap_or_default();
    if number < OLDEST_SERVER {
        return Err(too_old(&setting("version")?));
    }
    let encoding = setting("encoding")?;
    if encoding != "UTF8" {
        return Err(misconfigured(format!(
            "the database is encoded as {encoding}, in which not every payload can be kept; create one with ENCODING 'UTF8'"
        )));
    }
    if setting("read_only")? == "on" {
        return Err(misconfigured(format!(
            "`default_transaction_read_only` is on, so role {role} cannot write: run `ALTER ROLE {role} RESET \
             default_transaction_read_only`, the same for `DATABASE {database}`, or look for the setting in the URL and in the \
             server's configuration",
            role = setting("role")?,
            database = setting("database")?,
        )));
    }
    Usual::read(setting)
}

fn too_old(version: &str) -> StateError {
    misconfigured(format!(
        "the server is Postgres {version}; this library needs Postgres 14 or later"
    ))
}

impl PostgresState {
    fn new(settings: &PostgresOptions, access: Access) -> Self {
        let store = Store::new(access.pool.clone(), &settings.schema, settings.ageing_step);
        let upkeep = Upkeep::new(&settings.schema, settings.retention.clone());
        // Only connections of the library's own carry the number of a session lock.
        let liveness = access.sessions.session_lock();
        let liveness = liveness.map(|session_lock| Liveness::new(session_lock, access.pool.connect_options()));
        Self::with(store, access, upkeep, liveness)
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    async fn options() -> PgConnectOptions {
        PgConnectOptions::from_str(&postgres_support::server_url().await).unwrap()
    }

    /// The names of the keepalives that a client has set: over a socket of the machine itself their values read as zero.
    async fn keepalives(connection: &mut PgConnection) -> Vec<String> {
        let set = "SELECT name FROM pg_settings WHERE name LIKE 'tcp\\_%' AND source = 'client' ORDER BY name";
        sqlx::query_scalar(set).fetch_all(connection).await.unwrap()
    }

    const ALL: [&str; 4] = [
        "tcp_keepalives_count",
        "tcp_keepalives_idle",
        "tcp_keepalives_interval",
        "tcp_user_timeout",
    ];

    #[tokio::test]
    async fn the_first_connection_has_keepalives() {
        let mut first = first_connection(&PostgresState::options(), &options().await)
            .await
            .unwrap();
        assert_eq!(keepalives(&mut first).await, ALL);
    }

    /// The pool's connections, and those beside it, which are made with the same options.
    #[tokio::test]
    async fn the_connections_of_the_pool_have_keepalives() {
        let tuned = tuned_pool(&PostgresState::options(), &options().await).await.unwrap();
        let (pool, _) = tuned.expect("there is no pooler");
        let mut connection = pool.acquire().await.unwrap();
        assert_eq!(keepalives(&mut connection).await, ALL);
        let mut beside = PgConnection::connect_with(&pool.connect_options()).await.unwrap();
        assert_eq!(keepalives(&mut beside).await, ALL);
    }
}
