//! The user's own tables, which join the same transactions. No constraint keeps a row from being there twice: that is
//! what the checker looks for.

use queuert::{AttemptInfo, ChainId, JobId};
use sqlx::{Executor, SqliteConnection};

pub(crate) async fn create(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    for table in [
        "CREATE TABLE IF NOT EXISTS started (chain TEXT NOT NULL, type TEXT NOT NULL, starter TEXT NOT NULL, \
         existing INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS effect (job TEXT NOT NULL, chain TEXT NOT NULL, type TEXT NOT NULL, \
         worker TEXT NOT NULL, attempt INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS reserved (job TEXT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS balance (total INTEGER NOT NULL)",
        "INSERT INTO balance SELECT 0 WHERE NOT EXISTS (SELECT * FROM balance)",
    ] {
        connection.execute(table).await?;
    }
    Ok(())
}

/// Notes a chain in the transaction that starts it: the note is there if and only if the chain is.
pub(crate) async fn started(
    connection: &mut SqliteConnection,
    chain: ChainId,
    type_name: &str,
    starter: &str,
    existing: bool,
) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO started VALUES (?, ?, ?, ?)")
        .bind(chain.to_string())
        .bind(type_name)
        .bind(starter)
        .bind(existing)
        .execute(connection)
        .await
        .map(drop)
}

/// What a job does, in the transaction in which it completes: a row, and a sum.
pub(crate) async fn effect(
    connection: &mut SqliteConnection,
    job: JobId,
    chain: ChainId,
    info: &AttemptInfo,
    n: u64,
) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO effect VALUES (?, ?, ?, ?, ?)")
        .bind(job.to_string())
        .bind(chain.to_string())
        .bind(info.job.type_name.as_str())
        .bind(info.worker.as_str())
        .bind(info.attempt)
        .execute(&mut *connection)
        .await?;
    sqlx::query("UPDATE balance SET total = total + ?")
        .bind(i64::try_from(n).unwrap_or_default())
        .execute(connection)
        .await
        .map(drop)
}

pub(crate) async fn reserve(connection: &mut SqliteConnection, job: JobId) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO reserved VALUES (?)")
        .bind(job.to_string())
        .execute(connection)
        .await
        .map(drop)
}
