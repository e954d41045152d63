//! The server: a schema for one case, and what the server says about itself.

use std::ops::{Deref, DerefMut};
use std::str::FromStr;

use queuert_measured::Observer;
use queuert_postgres::PostgresState;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnectOptions;

use super::made::Maker;
use crate::measure::BoxError;

/// Where `scripts/bench` says that the server is.
pub(crate) const URL: &str = "QUEUERT_BENCH_POSTGRES_URL";

/// Every case begins by dropping it.
pub(crate) const SCHEMA: &str = "queuert_bench";

/// A connection that is not measured, next to those that are.
pub(crate) struct Server {
    pub(crate) options: PgConnectOptions,
    observer: Observer,
}

impl Deref for Server {
    type Target = Observer;

    fn deref(&self) -> &Observer {
        &self.observer
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Observer {
        &mut self.observer
    }
}

impl Server {
    /// Drops what the case before has left, so that all begin alike.
    pub(crate) async fn clean() -> Result<Self, BoxError> {
        let mut server = Self::as_it_is().await?;
        let text = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {SCHEMA} CASCADE");
        sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut server.connection)
            .await?;
        // Not in the middle of what is measured. Not everybody may, and then it comes when it comes.
        let _ = sqlx::raw_sql("CHECKPOINT").execute(&mut server.connection).await;
        Ok(server)
    }

    /// With what another process has put there.
    pub(crate) async fn as_it_is() -> Result<Self, BoxError> {
        let options = PgConnectOptions::from_str(&url()?)?;
        let observer = Observer::connect(&options).await?;
        Ok(Self { options, observer })
    }

    /// Makes rows in the schema of the case.
    pub(crate) fn maker(&mut self) -> Maker<'_> {
        self.maker_in(SCHEMA)
    }

    pub(crate) fn maker_in<'a>(&'a mut self, schema: &'a str) -> Maker<'a> {
        Maker {
            connection: &mut self.observer.connection,
            schema,
        }
    }

    pub(crate) async fn state(&self, most_connections: Option<u32>) -> Result<PostgresState, BoxError> {
        self.state_in(SCHEMA, most_connections).await
    }

    pub(crate) async fn state_in(
        &self,
        schema: &str,
        most_connections: Option<u32>,
    ) -> Result<PostgresState, BoxError> {
        let mut options = PostgresState::options().schema(schema);
        if let Some(most) = most_connections {
            options = options.max_connections(most);
        }
        Ok(options.connect_with(self.options.clone()).await?)
    }
}

pub(crate) fn url() -> Result<String, BoxError> {
    let url = std::env::var(URL);
    Ok(url.map_err(|_| format!("{URL} does not name a server: use scripts/bench"))?)
}
