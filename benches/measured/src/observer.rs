//! Asks a Postgres server what it has done, on a connection of its own that is not measured.

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::{BoxError, Figure, Report};

/// In every statement that is not part of the work, so that it can be told from those that are.
pub const OBSERVER: &str = "/* observer */";

/// A connection next to those that are measured.
#[derive(Debug)]
pub struct Observer {
    /// For whatever else has to be asked or prepared.
    pub connection: PgConnection,
}

/// What the server had done at some moment.
#[derive(Debug)]
pub struct Counts {
    wal: i64,
    transactions: i64,
    counts_statements: bool,
}

impl Observer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn connect(options: &PgConnectOptions) -> Result<Self, BoxError> {
        let options = options.clone().application_name("observer");
        Ok(Self {
            connection: PgConnection::connect_with(&options).await?,
        })
    }

    /// Remembers what the server has done so far, and begins to count statements.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub async fn counts(&mut self) -> Result<Counts, BoxError> {
        let counting = "SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS pg_stat_statements; \
                        SELECT pg_stat_statements_reset()";
        let counts_statements = sqlx::raw_sql(counting).execute(&mut self.connection).await.is_ok();
        let (wal, transactions) = self.places().await?;
        Ok(Counts {
            wal,
            transactions,
            counts_statements,
        })
    }

    /// Adds to a figure what the server did for each unit since then, and how many others are connected now.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub async fn cost_since(&mut self, before: &Counts, figure: &mut Figure) -> Result<(), BoxError> {
        let (wal, transactions) = self.places().await?;
        let statements = match before.counts_statements {
            true => Some(self.statements().await?),
            false => None,
        };
        let connections = self.connections().await?;
        if let Some(cost) = &mut figure.cost {
            let units = cost.units as f64;
            cost.wal_bytes = Some((wal - before.wal) as f64 / units);
            cost.transactions = Some((transactions - before.transactions) as f64 / units);
            cost.statements = statements.map(|statements| statements as f64 / units);
            cost.connections = Some(connections as f64);
        }
        Ok(())
    }

    /// How many statements the server has run since then, those of observers left out.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or cannot count statements.
    pub async fn statements_since(&mut self, before: &Counts) -> Result<f64, BoxError> {
        if !before.counts_statements {
            return Err("the server does not have pg_stat_statements".into());
        }
        Ok(self.statements().await? as f64)
    }

    /// Where the log is, and the next number of a transaction that writes.
    async fn places(&mut self) -> Result<(i64, i64), BoxError> {
        let row = sqlx::query(
            "SELECT /* observer */ (pg_current_wal_insert_lsn() - '0/0')::bigint, \
             pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
        );
        let row = row.fetch_one(&mut self.connection).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }

    /// All that was run on this database, except by observers.
    async fn statements(&mut self) -> Result<i64, BoxError> {
        let calls = sqlx::query_scalar(
            "SELECT /* observer */ coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND query !~ 'observer|pg_stat_statements'",
        );
        Ok(calls.fetch_one(&mut self.connection).await?)
    }

    async fn connections(&mut self) -> Result<i64, BoxError> {
        let connections = sqlx::query_scalar(
            "SELECT /* observer */ count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND backend_type = 'client backend' AND application_name <> 'observer'",
        );
        Ok(connections.fetch_one(&mut self.connection).await?)
    }

    /// Adds the settings that matter for the figures.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub async fn described(&mut self, report: Report) -> Result<Report, BoxError> {
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
            let row = sqlx::query("SELECT /* observer */ current_setting($1)").bind(name);
            let value: String = row.fetch_one(&mut self.connection).await?.try_get(0)?;
            texts.push(format!("{name} {value}"));
        }
        Ok(report.fact("server", texts.join(", ")))
    }
}
