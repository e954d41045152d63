//! The user's own tables, which join the same transactions. No constraint keeps a row from being there twice: that is
//! what the checker looks for.

use queuert::{AttemptInfo, ChainId, JobId};
use sqlx::{Executor, PgConnection};

pub(crate) async fn create(connection: &mut PgConnection) -> sqlx::Result<()> {
    for table in [
        "CREATE TABLE started (chain text NOT NULL, batch bigint NOT NULL)",
        "CREATE TABLE effect (job text NOT NULL, worker text NOT NULL, attempt bigint NOT NULL, n bigint NOT NULL)",
    ] {
        connection.execute(table).await?;
    }
    Ok(())
}

/// Notes chains in the transaction that starts them: the notes are there if and only if the chains are.
pub(crate) async fn started(connection: &mut PgConnection, chains: &[ChainId], batch: i64) -> sqlx::Result<()> {
    let chains: Vec<String> = chains.iter().map(ChainId::to_string).collect();
    sqlx::query("INSERT INTO started SELECT unnest($1::text[]), $2")
        .bind(chains)
        .bind(batch)
        .execute(connection)
        .await
        .map(drop)
}

/// What a job does, in the transaction in which it completes.
pub(crate) async fn effect(connection: &mut PgConnection, job: JobId, info: &AttemptInfo, n: u64) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO effect VALUES ($1, $2, $3, $4)")
        .bind(job.to_string())
        .bind(info.worker.as_str())
        .bind(i64::from(info.attempt))
        .bind(i64::try_from(n).unwrap_or_default())
        .execute(connection)
        .await
        .map(drop)
}
