//! The server: a schema for one case, and what the server says about itself.

use std::str::FromStr;

use queuert_measured::Figure;
use queuert_postgres::PostgresState;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::measure::{BoxError, Report};

/// Where `scripts/bench` says that the server is.
const URL: &str = "QUEUERT_BENCH_POSTGRES_URL";

/// Every case begins by dropping it.
pub(super) const SCHEMA: &str = "queuert_bench";

/// A connection that is not measured, next to those that are.
pub(super) struct Server {
    options: PgConnectOptions,
    pub(super) connection: PgConnection,
}

/// What the server had done at some moment.
pub(super) struct Counts {
    wal: i64,
    counts_statements: bool,
}

impl Server {
    /// Drops what the case before has left, so that all begin alike.
    pub(super) async fn clean() -> Result<Self, BoxError> {
        let url = std::env::var(URL);
        let url = url.map_err(|_| format!("{URL} does not name a server: use scripts/bench"))?;
        let options = PgConnectOptions::from_str(&url)?;
        let mut connection = PgConnection::connect_with(&options).await?;
        let text = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {SCHEMA} CASCADE");
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await?;
        // Not in the middle of what is measured. Not everybody may, and then it comes when it comes.
        let _ = sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await;
        Ok(Self { options, connection })
    }

    pub(super) async fn state(&self, most_connections: Option<u32>) -> Result<PostgresState, BoxError> {
        let mut options = PostgresState::options().schema(SCHEMA);
        if let Some(most) = most_connections {
            options = options.max_connections(most);
        }
        Ok(options.connect_with(self.options.clone()).await?)
    }

    pub(super) async fn counts(&mut self) -> Result<Counts, BoxError> {
        let counting = "SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS pg_stat_statements; \
                        SELECT pg_stat_statements_reset()";
        let counts_statements = sqlx::raw_sql(counting).execute(&mut self.connection).await.is_ok();
        Ok(Counts {
            wal: self.wal().await?,
            counts_statements,
        })
    }

    /// Adds to a figure what the server did for each unit since then.
    pub(super) async fn cost_since(&mut self, before: &Counts, figure: &mut Figure) -> Result<(), BoxError> {
        let wal = self.wal().await? - before.wal;
        let statements = match before.counts_statements {
            true => Some(self.statements().await?),
            false => None,
        };
        if let Some(cost) = &mut figure.cost {
            let units = cost.units as f64;
            cost.wal_bytes = Some(wal as f64 / units);
            cost.statements = statements.map(|statements| statements as f64 / units);
        }
        Ok(())
    }

    async fn wal(&mut self) -> Result<i64, BoxError> {
        let place = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint");
        Ok(place.fetch_one(&mut self.connection).await?)
    }

    /// All that was run on this database, except on this connection.
    async fn statements(&mut self) -> Result<i64, BoxError> {
        let calls = sqlx::query_scalar(
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND query !~ 'pg_stat_statements|pg_current_wal'",
        );
        Ok(calls.fetch_one(&mut self.connection).await?)
    }

    /// The settings that matter for the figures.
    pub(super) async fn described(&mut self, report: Report) -> Result<Report, BoxError> {
        let names = [
            "server_version",
            "fsync",
            "synchronous_commit",
            "full_page_writes",
            "shared_buffers",
            "max_wal_size",
        ];
        let mut texts = Vec::new();
        for name in names {
            let row = sqlx::query("SELECT current_setting($1)").bind(name);
            let value: String = row.fetch_one(&mut self.connection).await?.try_get(0)?;
            texts.push(format!("{name} {value}"));
        }
        Ok(report.fact("server", texts.join(", ")))
    }
}
