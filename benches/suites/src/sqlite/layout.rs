//! A file as our adapter leaves it, for bare statements to work on.

use std::path::Path;
use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, Outcome, Settlement, StateAdapter};
use queuert::{Client, Fence, JobType, Payload, WorkerId};
use queuert_measured::{Letter, Receipt};
use queuert_sqlite::SqliteState;
use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use super::ours::SendLetter;
use crate::measure::BoxError;

/// What a connection of ours has set that is not kept in the file.
const PRAGMAS: [&str; 5] = [
    "synchronous",
    "cache_size",
    "wal_autocheckpoint",
    "temp_store",
    "mmap_size",
];

/// Writes the schema and one pending, one running and one completed job of the benchmark's type: the raw program
/// compares its own rows with them, so it cannot quietly write less than we do. Returns the writer's settings, as
/// `name=value` with commas.
pub(super) async fn write(file: &Path) -> Result<String, BoxError> {
    let state = SqliteState::open(file).await?;
    let client = Client::new(state.clone());
    client
        .start_many((0..3).map(|number| SendLetter(Letter::new(number))))
        .await?;
    let worker = WorkerId::new("the worker of the layout");
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let types = vec![ClaimType {
        name: SendLetter::NAME.into(),
        lease: Duration::from_secs(60),
    }];
    let claimed = state
        .claim_jobs(&ClaimJobs::new(types, 2, worker.clone(), fence))
        .await?;
    let first = claimed.jobs.first().ok_or("nothing could be claimed")?;
    let receipt = serde_json::to_string(&Receipt::of(&Letter::new(0)))?;
    let settlement = Settlement {
        job: first.job.id,
        authority: Authority::Fence { fence, worker },
        outcome: Outcome::Finish {
            output: Payload::from_text(receipt),
        },
    };
    state.settle_jobs(None, &[settlement]).await?;
    let mut transaction = state.begin().await?;
    let mut pragmas = Vec::new();
    for name in PRAGMAS {
        pragmas.push(format!("{name}={}", pragma(&mut transaction, name).await?));
    }
    state.rollback(transaction).await?;
    state.close().await?;
    Ok(pragmas.join(","))
}

async fn pragma(connection: &mut SqliteConnection, name: &str) -> Result<i64, BoxError> {
    let value = sqlx::query_scalar(AssertSqlSafe(format!("PRAGMA {name}")));
    // One that was compiled out has no value.
    Ok(value.fetch_optional(connection).await?.unwrap_or_default())
}

/// The settings of the writer, in words.
pub(super) async fn facts(state: &SqliteState) -> Result<String, BoxError> {
    let mut transaction = state.begin().await?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut *transaction)
        .await?;
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut *transaction)
        .await?;
    let synchronous = pragma(&mut transaction, "synchronous").await?;
    let cache = pragma(&mut transaction, "cache_size").await?;
    let checkpoint = pragma(&mut transaction, "wal_autocheckpoint").await?;
    state.rollback(transaction).await?;
    Ok(format!(
        "SQLite {version}, journal {journal}, synchronous {synchronous}, cache_size {cache}, wal_autocheckpoint {checkpoint}"
    ))
}
