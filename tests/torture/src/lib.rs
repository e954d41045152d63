//! Kills, freezes, cuts off and fills up a busy queue, and checks that nothing is lost or doubled. See the README beside
//! it.
#![expect(clippy::print_stdout, reason = "its report is what it is for")]

mod backlog;
mod check;
mod clock;
mod enqueue;
mod facts;
mod faults;
mod history;
mod jobs;
mod log;
mod measure;
mod operate;
mod oracle;
mod plan;
mod processors;
pub mod recovery;
mod server;
mod store;
mod torture;
mod work;

use std::path::Path;

use queuert_postgres::PostgresState;
use queuert_sqlite::SqliteState;

pub use enqueue::report;
use plan::{Database, Plan, USAGE};
use work::Orders;

/// Anything that keeps it from doing its work, which is not a broken rule.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Does what the command line says; `false` if a rule is broken.
///
/// # Errors
///
/// If it cannot be done, which says nothing about the rules.
///
/// # Cancel safety
///
/// A dropped future kills the processes.
pub async fn run(arguments: &[String]) -> Result<bool> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [role @ ("work" | "enqueue"), orders] => {
            let orders: Orders = serde_json::from_str(orders)?;
            match (*role, orders.url.starts_with("sqlite:")) {
                ("work", true) => work::work::<SqliteState>(&orders).await?,
                ("work", false) => work::work::<PostgresState>(&orders).await?,
                (_, true) => enqueue::enqueue::<SqliteState>(&orders).await?,
                (_, false) => enqueue::enqueue::<PostgresState>(&orders).await?,
            }
            Ok(true)
        }
        ["recover", store, role] => {
            recovery::work(store, recovery::Role::named(role)).await?;
            Ok(true)
        }
        ["check", "sqlite", url, directory] => {
            let rules = check::check::<SqliteState>(url, Path::new(directory)).await?;
            torture::tell(rules.is_empty());
            Ok(rules.is_empty())
        }
        ["check", "postgres", url, directory] => {
            let rules = check::check::<PostgresState>(url, Path::new(directory)).await?;
            torture::tell(rules.is_empty());
            Ok(rules.is_empty())
        }
        ["measure", "restart", settings @ ..] => measure::restart(settings).await,
        ["measure", "snapshot", settings @ ..] => measure::snapshot(settings).await,
        [database, settings @ ..] => {
            let plan = Plan::parse(database, settings)?;
            match plan.database {
                Database::Sqlite => torture::run::<SqliteState>(plan).await,
                Database::Postgres => torture::run::<PostgresState>(plan).await,
            }
        }
        [] => Err(USAGE.into()),
    }
}
