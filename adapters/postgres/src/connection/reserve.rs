//! Connections of the library's own beside the pool, for the time in which transactions hold all connections of the pool.
//!
//! Transactions of the application may hold every connection of the pool, and for as long as they like. Leases must be
//! renewed meanwhile, ends of attempts written, and wake-ups sent, or living attempts lose their jobs. So the library's own
//! statements, when the pool has no connection, use connections that no transaction of the application can have. They
//! are opened when they are first needed, and closed when they have not been needed for a while.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queuert::__task::spawn;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::connect::missing_keepalives;
use crate::error::has_code;

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
    /// Whether a pooler was found to refuse keepalives.
    plain: AtomicBool,
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
            plain: AtomicBool::new(false),
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
                .connect_lazy_with(with_keepalives(&of.connect_options()))
        });
        loop {
            // A task of its own: a caller that gives up leaves a connection that the next one finds, and not one that is
            // half made.
            match spawn(pool.acquire()).await {
                Ok(Ok(connection)) => return connection,
                Ok(Err(error)) => {
                    let refused = refuses_options(&error) && !self.plain.swap(true, Ordering::SeqCst);
                    // The pool may have found out meanwhile that a pooler does not take the settings of its connections.
                    let options = of.connect_options();
                    pool.set_connect_options(if self.plain.load(Ordering::SeqCst) {
                        options.as_ref().clone()
                    } else {
                        with_keepalives(&options)
                    });
                    if !refused {
                        tokio::time::sleep(PAUSE).await;
                    }
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

/// Adds keepalives, by which the server notices that this process has vanished. The application's pool may have none.
fn with_keepalives(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().options(missing_keepalives(options))
}

/// Whether a pooler has refused the options of a connection, in one of these ways.
fn refuses_options(error: &sqlx::Error) -> bool {
    has_code(error, "08P01") || has_code(error, "0A000")
}

/// Opens a connection beside every pool. It gives up after `patience`, because a network that drops packets gives no answer.
/// The connection has keepalives, unless a pooler refuses them.
pub(crate) async fn open_beside(
    options: &PgConnectOptions,
    pooler: bool,
    patience: Duration,
) -> Result<PgConnection, sqlx::Error> {
    let opening = async {
        if !pooler {
            match PgConnection::connect_with(&with_keepalives(options)).await {
                Err(error) if refuses_options(&error) => {}
                connection => return connection,
            }
        }
        PgConnection::connect_with(options).await
    };
    tokio::time::timeout(patience, opening).await.unwrap_or_else(|_| {
        let cause = format!(
            "no connection could be made within {patience:?}; something on the way may drop packets, or the server is \
             overloaded; `acquire_timeout` is how long to wait"
        );
        Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, cause)))
    })
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use queuert::StateErrorKind;
    use sqlx::postgres::PgPoolOptions;
    use tokio::net::TcpListener;

    use super::*;
    use crate::PostgresState;

    /// How many keepalives a client has set, of four.
    async fn keepalives(connection: &mut PgConnection) -> i64 {
        let set = "SELECT count(*) FROM pg_settings WHERE name LIKE 'tcp\\_%' AND source = 'client'";
        sqlx::query_scalar(set).fetch_one(connection).await.unwrap()
    }

    /// Also beside a pool of the application's, which has none.
    #[tokio::test]
    async fn connections_beside_a_pool_have_keepalives() {
        let options = PgConnectOptions::from_str(&postgres_support::server_url().await).unwrap();
        let pool = PgPoolOptions::new().connect_lazy_with(options.clone());
        assert_eq!(keepalives(&mut pool.acquire().await.unwrap()).await, 0);
        let mut reserved = Reserve::new(1, true).renew(&pool).await.connection;
        assert_eq!(keepalives(&mut reserved).await, 4);
        let mut beside = open_beside(&options, false, DEADLINE * 6).await.unwrap();
        assert_eq!(keepalives(&mut beside).await, 4);
    }

    /// An address that takes connections and never answers.
    #[tokio::test]
    async fn a_server_that_does_not_answer_is_told_of_in_time() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://somebody@{}/somewhere", silent.local_addr().unwrap());
        let connecting = PostgresState::options()
            .acquire_timeout(Duration::from_millis(100))
            .connect(&url);
        let answer = tokio::time::timeout(DEADLINE * 6, Box::pin(connecting)).await;
        let error = answer.expect("it does not hang").unwrap_err();
        assert_eq!(error.kind(), StateErrorKind::Transient);
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("acquire_timeout"), "{cause}");
    }
}
