//! Locking many chains at once, with none of them held while another is waited for.

use std::collections::{BTreeMap, BTreeSet};

use queuert::{ChainId, JobId, StateError};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::locks::Locked;
use crate::row;
use crate::store::Store;

/// How often all locks are released because another transaction holds one of them. Where so many are contended, the session
/// waits for them in order of id instead, and Postgres finds a deadlock with a transaction that locks in another order.
const MOST_ROUNDS: usize = 30;

/// Which chains a verb locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// These.
    Chains(&'a [ChainId]),
    /// These, and the chains that their latest jobs have as blockers.
    WithBlockers(&'a [ChainId]),
    /// These, the blockers of all their jobs, and so on.
    Cascade(&'a [ChainId]),
    /// These, the chains for which they wait or would wait if they were retried, and so on.
    Ahead(&'a [ChainId]),
}

impl Scope<'_> {
    /// The chains in order: the given ones, each once, then the ones that the scope adds, one level after the other. It is not
    /// checked whether they exist; a chain that does not exist adds nothing.
    pub(crate) async fn chains(self, session: &mut Session<'_>, store: &Store) -> Result<Vec<ChainId>, StateError> {
        let (given, edges) = match self {
            Self::Chains(given) => (given, None),
            Self::WithBlockers(given) => (given, Some(&store.sql.blockers_of_latest)),
            Self::Cascade(given) => (given, Some(&store.sql.blockers_of_all)),
            Self::Ahead(given) => (given, Some(&store.sql.chains_ahead)),
        };
        let mut seen = BTreeSet::new();
        let mut chains: Vec<ChainId> = given.iter().copied().filter(|chain| seen.insert(*chain)).collect();
        let Some(edges) = edges else {
            return Ok(chains);
        };
        let mut level = 0;
        while level < chains.len() {
            let ids: Vec<Uuid> = chains[level..].iter().map(|chain| chain.as_uuid()).collect();
            level = chains.len();
            for found in session.fetch(query(edges).bind(ids)).await? {
                let chain = ChainId::from_uuid(row::get(&found, "id")?);
                if seen.insert(chain) {
                    chains.push(chain);
                }
            }
            if let Self::WithBlockers(_) | Self::Ahead(_) = self {
                break;
            }
        }
        Ok(chains)
    }

    /// Whether the chains of the scope may have changed before the locks were granted.
    fn grows(self) -> bool {
        !matches!(self, Self::Chains(_))
    }
}

/// Locks the chains of a scope, and returns them in the order of [`Scope::chains`].
///
/// An end locks a chain and then the chains that wait for it, a continuation locks a chain and then the chains for which it
/// will wait, so there is no order of many locks that suits both. Hence the call waits for one chain at a time, and holds none
/// of the others meanwhile: it releases them, waits for the one, and tries to lock the rest again. Where the session does not
/// wait and a chain is busy, the answer says so.
pub(crate) async fn lock(
    session: &mut Session<'_>,
    store: &Store,
    scope: Scope<'_>,
) -> Result<(Vec<ChainId>, Locked), StateError> {
    // A session that does not wait, or waits for one chain only, cannot be part of a deadlock.
    let is_safe = !session.waits || (!scope.grows() && scope.chains(session, store).await?.len() < 2);
    let rounds = if is_safe { 0 } else { MOST_ROUNDS };
    let mut contended = None;
    for _ in 0..rounds {
        session.execute(query(&store.sql.savepoint)).await?;
        if let Some(chain) = contended {
            store.lock_chains(session, [chain]).await?;
        }
        let chains = scope.chains(session, store).await?;
        let locked = try_lock(session, store, &chains).await?;
        contended = locked.busy.iter().min().copied();
        // A chain that went on before its lock was granted may have other blockers now.
        if contended.is_none() && (!scope.grows() || scope.chains(session, store).await? == chains) {
            session.execute(query(&store.sql.release_savepoint)).await?;
            return Ok((chains, locked));
        }
        session.execute(query(&store.sql.rollback_to_savepoint)).await?;
        session.execute(query(&store.sql.release_savepoint)).await?;
    }
    loop {
        let chains = scope.chains(session, store).await?;
        let locked = store.lock_chains(session, chains.iter().copied()).await?;
        if !locked.busy.is_empty() || !scope.grows() || scope.chains(session, store).await? == chains {
            return Ok((chains, locked));
        }
    }
}

/// Locks the chains that no other transaction has locked.
async fn try_lock(session: &mut Session<'_>, store: &Store, chains: &[ChainId]) -> Result<Locked, StateError> {
    let waits = std::mem::replace(&mut session.waits, false);
    let locked = store.lock_chains(session, chains.iter().copied()).await;
    session.waits = waits;
    locked
}

/// The chains of jobs that exist.
pub(crate) async fn chains_of(
    session: &mut Session<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<BTreeMap<JobId, ChainId>, StateError> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.as_uuid()).collect();
    let mut chains = BTreeMap::new();
    for found in session.fetch(query(&store.sql.chains_of_jobs).bind(ids)).await? {
        let chain = ChainId::from_uuid(row::get(&found, "chain_id")?);
        chains.insert(JobId::from_uuid(row::get(&found, "id")?), chain);
    }
    Ok(chains)
}
