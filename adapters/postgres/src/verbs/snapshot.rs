//! Transactions of the caller's that see one moment for their whole life: REPEATABLE READ and SERIALIZABLE.
//!
//! The server refuses such a transaction the lock of a row that has changed since its snapshot, and every transaction that
//! changes a chain changes the row that is the chain's lock. So a verb that has locked its chains does what is right, or has
//! failed with a conflict. The answers for which there was nothing to lock remain: that a job or chain does not exist, is not
//! the caller's, or that a key or id is taken. This module confirms them, by locks on the rows that the snapshot shows, which
//! are released at once. An answer that the snapshot cannot give is a conflict, and the caller runs the transaction again.

use std::time::Duration;

use queuert::adapter::{Refusal, Settled, Settlement};
use queuert::{ChainId, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::error::{has_code, translate};
use crate::row::{self, Table};
use crate::statements::{Filling, text};
use crate::store::Store;

/// How long to wait for a transaction that is about to create what an answer calls missing.
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// The time, and whether the transaction sees one moment only.
pub(crate) async fn now(session: &mut Session<'_>, store: &Store) -> Result<(Timestamp, bool), StateError> {
    let rows = session.fetch(query(store.sql.now.when(session.guarded))).await?;
    match rows.first() {
        Some(found) => Ok((
            Timestamp::from_micros(row::get(found, "now")?),
            row::get(found, "sees_one_moment")?,
        )),
        None => Ok((Timestamp::from_micros(0), false)),
    }
}

/// Confirms that open chains with a key, or ended ones, are still what the snapshot shows.
pub(crate) async fn confirm_keys(
    session: &mut Session<'_>,
    store: &Store,
    chains: impl Iterator<Item = ChainId>,
) -> Result<(), StateError> {
    let chains: Vec<Uuid> = chains.map(|chain| chain.as_uuid()).collect();
    if chains.is_empty() {
        return Ok(());
    }
    session.execute(query(&store.sql.savepoint)).await?;
    let open_keys = query(&store.sql.confirm_open_keys).bind(chains.clone());
    session.fetch(open_keys).await?;
    let first_jobs = store.statement(text::CONFIRM_ROWS, Filling::none().with("table", "job"));
    session.fetch(query(&first_jobs).bind(chains)).await?;
    undo(session, store).await
}

/// Confirms a refusal, which leaves the transaction as it is.
pub(crate) async fn confirm_refusal(
    session: &mut Session<'_>,
    store: &Store,
    refusal: &Refusal,
) -> Result<(), StateError> {
    let (jobs, holders) = concerned(refusal);
    if (jobs.is_empty() && holders.is_empty()) || !now(session, store).await?.1 {
        return Ok(());
    }
    confirm_keys(session, store, holders.into_iter()).await?;
    confirm_frozen(session, store, jobs).await
}

/// Confirms what was not settled.
pub(crate) async fn confirm_settled(
    session: &mut Session<'_>,
    store: &Store,
    settlements: &[Settlement],
    settled: &[Settled],
) -> Result<(), StateError> {
    let mut jobs = Vec::new();
    for (settlement, settled) in settlements.iter().zip(settled) {
        match settled {
            Settled::Lost(_) => jobs.push(settlement.job.as_uuid()),
            Settled::Refused(refusal) => jobs.extend(concerned(refusal).0),
            _ => {}
        }
    }
    confirm(session, store, jobs).await
}

/// The jobs (a chain is its first one) about which the refusal says something that is not known by a lock, and the chains
/// that have a key.
fn concerned(refusal: &Refusal) -> (Vec<Uuid>, Vec<ChainId>) {
    match refusal {
        Refusal::IdTaken(job) | Refusal::JobNotFound(job) => (vec![job.as_uuid()], Vec::new()),
        Refusal::BlockerNotFound { chain, .. } | Refusal::ChainNotFound(chain) => (vec![chain.as_uuid()], Vec::new()),
        Refusal::Referenced(references) => {
            let jobs = references.iter().map(|reference| reference.job.as_uuid());
            (jobs.collect(), Vec::new())
        }
        Refusal::KeyTaken { holder, .. } => (Vec::new(), vec![*holder]),
        // The chain was locked.
        _ => (Vec::new(), Vec::new()),
    }
}

/// Confirms that jobs are where the snapshot shows them, or do not exist if it does not show them.
pub(crate) async fn confirm(session: &mut Session<'_>, store: &Store, jobs: Vec<Uuid>) -> Result<(), StateError> {
    if jobs.is_empty() || !now(session, store).await?.1 {
        return Ok(());
    }
    confirm_frozen(session, store, jobs).await
}

async fn confirm_frozen(session: &mut Session<'_>, store: &Store, jobs: Vec<Uuid>) -> Result<(), StateError> {
    if jobs.is_empty() {
        return Ok(());
    }
    session.execute(query(&store.sql.savepoint)).await?;
    for table in Table::ALL.map(Table::name).into_iter().chain(["job"]) {
        let confirm = store.statement(text::CONFIRM_ROWS, Filling::none().with("table", table));
        session.fetch(query(&confirm).bind(jobs.clone())).await?;
    }
    // The primary key knows jobs that the snapshot does not show.
    let lock_wait = format!("{}ms", LOCK_WAIT.as_millis());
    session.fetch(query(&store.sql.limit_lock_wait).bind(lock_wait)).await?;
    match session.try_fetch(query(&store.sql.probe_ids).bind(jobs)).await {
        Ok(_) => {}
        // Another transaction is about to create it, and has not: it does not exist.
        Err(error) if has_code(&error, "55P03") => {}
        Err(error) => return Err(translate(error)),
    }
    undo(session, store).await
}

async fn undo(session: &mut Session<'_>, store: &Store) -> Result<(), StateError> {
    session.execute(query(&store.sql.rollback_to_savepoint)).await?;
    session.execute(query(&store.sql.release_savepoint)).await
}
