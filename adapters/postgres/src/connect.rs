//! How connections are made, and what is asked of the server first.

use std::time::Duration;

use queuert::StateError;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Row, SqlSafeStr, SqlStr};

use crate::core::Core;
use crate::error::{has_code, misconfigured, translate};
use crate::lanes::{Lanes, PLACES};
use crate::lifeline;
use crate::maintain::Upkeep;
use crate::migrate;
use crate::options::PostgresOptions;
use crate::presence::Presence;
use crate::state::PostgresState;

/// The oldest server that has what the statements use.
const OLDEST_SERVER: i32 = 140_000;

/// What the statements of this library need, and most others do not: plans that are made once, and that follow the
/// indexes in their order whatever the tables looked like when they were made.
const TUNING: [(&str, &str); 4] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
];

/// One snapshot per statement: who waited for a lock sees what its holder left.
const ISOLATION: (&str, &str) = ("default_transaction_isolation", "read committed");

/// Connections that were used within this time are taken to be alive.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

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
    pub(crate) lanes: Lanes,
    pub(crate) mode: Mode,
    /// What begins a transaction for the caller: with the settings that the caller's statements would have elsewhere.
    pub(crate) begin_for_caller: SqlStr,
    /// What begins a transaction of the library's own.
    pub(crate) begin: SqlStr,
}

pub(crate) async fn connect(settings: PostgresOptions, options: PgConnectOptions) -> Result<PostgresState, StateError> {
    // Not sent at all: a pooler would refuse it, and nothing here is a float.
    let mut options = options.extra_float_digits(None);
    if options.get_application_name().is_none() {
        options = options.application_name("queuert");
    }
    let mut first = PgConnection::connect_with(&options).await.map_err(translate)?;
    let usual = inspect(&mut first).await?;
    migrate::install(&mut first, &settings.schema, settings.migrate).await?;
    first.close().await.map_err(translate)?;
    if !settings.pooler
        && let Some(pool) = tuned_pool(&settings, &options).await?
    {
        let access = Access {
            lanes: Lanes::new(pool.clone(), PLACES),
            pool,
            mode: Mode::Own,
            begin_for_caller: begin_with(&usual),
            begin: read_committed(&[]),
        };
        return Ok(PostgresState::new(&settings, access));
    }
    let pool = pool_options(&settings).connect_lazy_with(options.statement_cache_capacity(0));
    Ok(PostgresState::new(&settings, guarded(pool)))
}

pub(crate) async fn adopt(settings: PostgresOptions, pool: PgPool) -> Result<PostgresState, StateError> {
    let mut connection = pool.acquire().await.map_err(translate)?;
    inspect(&mut connection).await?;
    migrate::install(&mut connection, &settings.schema, settings.migrate).await?;
    drop(connection);
    Ok(PostgresState::new(&settings, guarded(pool)))
}

fn guarded(pool: PgPool) -> Access {
    Access {
        lanes: Lanes::new(pool.clone(), PLACES),
        pool,
        mode: Mode::Guarded,
        begin_for_caller: "BEGIN".into_sql_str(),
        begin: read_committed(&TUNING),
    }
}

fn read_committed(settings: &[(&str, &str)]) -> SqlStr {
    let mut text = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned();
    for (name, value) in settings {
        text.push_str(&format!("; SET LOCAL {name} = '{value}'"));
    }
    AssertSqlSafe(text).into_sql_str()
}

/// What the server sets where this library sets something else.
struct Usual {
    tuning: [String; 4],
    isolation: String,
}

/// A transaction in which the usual settings hold.
fn begin_with(usual: &Usual) -> SqlStr {
    let mut text = format!("BEGIN ISOLATION LEVEL {}", usual.isolation);
    for ((name, tuned), value) in TUNING.iter().zip(&usual.tuning) {
        if tuned != value {
            text.push_str(&format!("; SET LOCAL {name} = '{value}'"));
        }
    }
    AssertSqlSafe(text).into_sql_str()
}

fn pool_options(settings: &PostgresOptions) -> PoolOptions<Postgres> {
    PgPoolOptions::new()
        .max_connections(settings.max_connections)
        .acquire_timeout(settings.acquire_timeout)
        .test_before_acquire(false)
        // A round trip less for connections in use; those that were idle may have died.
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for >= FRESH {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
}

/// A pool with the settings above, or `None` if something between here and the server does not pass them on.
async fn tuned_pool(settings: &PostgresOptions, options: &PgConnectOptions) -> Result<Option<PgPool>, StateError> {
    let tuned = options
        .clone()
        .options(TUNING.into_iter().chain([ISOLATION]))
        .options([(lifeline::SETTING, fastrand::i64(..))])
        .statement_cache_capacity(500);
    let pool = match pool_options(settings).connect_with(tuned).await {
        Ok(pool) => pool,
        // "unsupported startup parameter": a pooler's answer, never the server's.
        Err(error) if has_code(&error, "08P01") => return Ok(None),
        Err(error) => return Err(translate(error)),
    };
    let row = sqlx::raw_sql("SHOW plan_cache_mode")
        .fetch_one(&pool)
        .await
        .map_err(translate)?;
    let mode: String = row.try_get(0).map_err(translate)?;
    if mode == TUNING[0].1 {
        return Ok(Some(pool));
    }
    pool.close().await;
    Ok(None)
}

/// Checks the server, and asks for its settings.
async fn inspect(connection: &mut PgConnection) -> Result<Usual, StateError> {
    // One message: a pooler cannot tear it apart.
    let row = sqlx::raw_sql(
        "SELECT current_setting('server_version_num'), current_setting('server_version'), \
         current_setting('server_encoding'), current_setting('plan_cache_mode'), current_setting('enable_seqscan'), \
         current_setting('enable_bitmapscan'), current_setting('jit'), current_setting('default_transaction_isolation')",
    )
    .fetch_one(connection)
    .await
    .map_err(|error| match has_code(&error, "42704") {
        true => too_old("of an unknown version").with_source(error),
        false => translate(error),
    })?;
    let text = |index: usize| row.try_get::<String, _>(index).map_err(translate);
    let number: i32 = text(0)?.parse().unwrap_or_default();
    if number < OLDEST_SERVER {
        return Err(too_old(&text(1)?));
    }
    let encoding = text(2)?;
    if encoding != "UTF8" {
        return Err(misconfigured(format!(
            "the database is encoded as {encoding}, in which not every payload can be kept; create one with ENCODING 'UTF8'"
        )));
    }
    Ok(Usual {
        tuning: [text(3)?, text(4)?, text(5)?, text(6)?],
        isolation: text(7)?,
    })
}

fn too_old(version: &str) -> StateError {
    misconfigured(format!(
        "the server is Postgres {version}; this library needs Postgres 14 or later"
    ))
}

impl PostgresState {
    fn new(settings: &PostgresOptions, access: Access) -> Self {
        let core = Core::new(access.pool.clone(), &settings.schema, settings.ageing_step);
        let upkeep = Upkeep::new(&settings.schema, settings.retention.clone());
        // Only connections of the library's own carry the number of a lifeline.
        let presence = match access.mode {
            Mode::Own => Presence::new(access.pool.connect_options()),
            Mode::Guarded => None,
        };
        Self::with(core, access, upkeep, presence)
    }
}
