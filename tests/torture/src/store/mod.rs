//! What differs between the databases, for the processes of a run and for the oracle.

mod postgres;
mod sqlite;
pub(crate) mod tables;

use std::time::Duration;

use queuert::adapter::{NotifyAdapter, StateAdapter};
use queuert::{Client, StateError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Result;

/// A value that is bound to a statement.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

impl<T: ToString> From<&T> for Value {
    fn from(value: &T) -> Self {
        Self::Text(value.to_string())
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Number(value)
    }
}

/// A queue that is tortured. Statements are written once: both databases know `$1`.
pub(crate) trait Store: StateAdapter + Clone {
    type Notify: NotifyAdapter;

    fn open(url: &str) -> impl Future<Output = Result<Self, StateError>> + Send;

    /// The listener of a process may have an address of its own.
    fn notify(&self, ears: &str) -> Result<Self::Notify>;

    fn close(&self) -> impl Future<Output = ()> + Send;

    fn execute(
        connection: &mut Self::Connection,
        statement: &'static str,
        values: Vec<Value>,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Rows of texts.
    fn fetch(
        connection: &mut Self::Connection,
        statement: &'static str,
    ) -> impl Future<Output = sqlx::Result<Vec<Vec<String>>>> + Send;

    /// Reads, and sees for so long what was there when it began. Says when it has.
    fn hold_snapshot(
        url: &str,
        how_long: Duration,
        held: oneshot::Sender<()>,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Replaces a part of the functions that the adapter has put into the database, by a regular expression; says how many
    /// functions have changed.
    fn change_functions(
        connection: &mut Self::Connection,
        expression: &'static str,
    ) -> impl Future<Output = sqlx::Result<usize>> + Send;

    /// What the database itself says about its files, if it can: "ok".
    fn integrity(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<String>> + Send;
}

/// How long a store may be away.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a store; one that cannot be had for now is waited for.
pub(crate) async fn open<S: Store>(url: &str) -> Result<S> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match S::open(url).await {
            Ok(state) => return Ok(state),
            // Also one that refuses: that is a fault too, and passes.
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// A client without wake-ups, for whoever only looks.
pub(crate) async fn look<S: Store>(url: &str) -> Result<Client<S>> {
    Ok(Client::new(open(url).await?))
}
