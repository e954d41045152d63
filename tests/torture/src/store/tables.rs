//! The user's own tables, which join the same transactions. No constraint keeps a row from being there twice: that is
//! what the oracle looks for.

use queuert::{AttemptInfo, ChainId, JobId};

use super::{Store, Value};

/// Accounts among which money is moved.
pub(crate) const ACCOUNTS: i64 = 24;
/// What each has at first.
pub(crate) const EACH: i64 = 1_000_000;

pub(crate) async fn create<S: Store>(connection: &mut S::Connection) -> sqlx::Result<()> {
    for table in [
        "CREATE TABLE started (chain TEXT NOT NULL, type TEXT NOT NULL, starter TEXT NOT NULL, existing BIGINT NOT NULL)",
        "CREATE TABLE effect (job TEXT NOT NULL, chain TEXT NOT NULL, type TEXT NOT NULL, worker TEXT NOT NULL, \
         attempt BIGINT NOT NULL)",
        "CREATE TABLE reserved (job TEXT NOT NULL)",
        "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)",
    ] {
        S::execute(connection, table, Vec::new()).await?;
    }
    for account in 0..ACCOUNTS {
        let values = vec![Value::from(account), Value::from(EACH)];
        S::execute(connection, "INSERT INTO account VALUES ($1, $2)", values).await?;
    }
    Ok(())
}

/// Notes a chain in the transaction that starts it: the note is there if and only if the chain is.
pub(crate) async fn started<S: Store>(
    connection: &mut S::Connection,
    chain: ChainId,
    type_name: &str,
    starter: &str,
    existing: bool,
) -> sqlx::Result<()> {
    let values = vec![
        Value::from(&chain),
        Value::from(&type_name),
        Value::from(&starter),
        Value::from(i64::from(existing)),
    ];
    S::execute(connection, "INSERT INTO started VALUES ($1, $2, $3, $4)", values)
        .await
        .map(drop)
}

/// What a job does, in the transaction in which it completes.
pub(crate) async fn effect<S: Store>(connection: &mut S::Connection, info: &AttemptInfo) -> sqlx::Result<()> {
    let values = vec![
        Value::from(&info.job.id),
        Value::from(&info.job.chain_id),
        Value::from(&info.job.type_name.as_str()),
        Value::from(&info.worker.as_str()),
        Value::from(i64::from(info.attempt)),
    ];
    S::execute(connection, "INSERT INTO effect VALUES ($1, $2, $3, $4, $5)", values)
        .await
        .map(drop)
}

pub(crate) async fn reserve<S: Store>(connection: &mut S::Connection, job: JobId) -> sqlx::Result<()> {
    S::execute(connection, "INSERT INTO reserved VALUES ($1)", vec![Value::from(&job)])
        .await
        .map(drop)
}

/// A movement of money.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Movement {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) amount: i64,
}

impl Movement {
    /// The one that a number stands for; never from an account to itself.
    pub(crate) fn of(n: u64) -> Self {
        let n = i64::try_from(n % 1_000_000).unwrap_or_default();
        let from = n % ACCOUNTS;
        Self {
            from,
            to: (from + 1 + n / ACCOUNTS % (ACCOUNTS - 1)) % ACCOUNTS,
            amount: 1 + n % 97,
        }
    }
}

/// Moves money. The lower account first, so that two movements do not wait for each other in a circle.
pub(crate) async fn transfer<S: Store>(connection: &mut S::Connection, movement: Movement) -> sqlx::Result<()> {
    let mut changes = [(movement.from, -movement.amount), (movement.to, movement.amount)];
    changes.sort_unstable();
    for (account, change) in changes {
        let values = vec![Value::from(change), Value::from(account)];
        S::execute(
            connection,
            "UPDATE account SET balance = balance + $1 WHERE id = $2",
            values,
        )
        .await?;
    }
    Ok(())
}
