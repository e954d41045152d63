//! A database for one run.

use std::str::FromStr;

use queuert_measured::{BoxError, Observer};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::Checks;

/// Every run begins by dropping it.
const NAME: &str = "queuert_bench_peer";

pub(crate) struct Database {
    /// For the peer.
    pub(crate) url: String,
    pub(crate) observer: Observer,
    pub(crate) checks: Checks,
}

impl Database {
    /// Drops what the run before has left, and makes an empty one.
    pub(crate) async fn fresh(server: &str) -> Result<Self, BoxError> {
        let options = PgConnectOptions::from_str(server)?;
        let mut connection = PgConnection::connect_with(&options).await?;
        for text in [
            "SET client_min_messages = warning",
            "DROP DATABASE IF EXISTS queuert_bench_peer WITH (FORCE)",
            "CREATE DATABASE queuert_bench_peer",
            "CHECKPOINT",
        ] {
            sqlx::raw_sql(text).execute(&mut connection).await?;
        }
        connection.close().await?;
        let place = server.rfind('/').ok_or("the address has no database")?;
        let options = options.database(NAME);
        Ok(Self {
            url: format!("{}/{NAME}", &server[..place]),
            observer: Observer::connect(&options).await?,
            checks: Checks(Observer::connect(&options).await?),
        })
    }

    /// Tells the planner what is there, as autovacuum would by and by.
    pub(crate) async fn analyze(&mut self) -> Result<(), BoxError> {
        sqlx::raw_sql("ANALYZE").execute(&mut self.observer.connection).await?;
        Ok(())
    }
}
