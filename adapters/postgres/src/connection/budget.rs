//! Which part of the library may have a connection, and when.
//!
//! A pool opens another connection whenever a caller asks and none is idle, and a connection that was given back is not idle
//! at once: a task asks the server for a sign of life first. So the loops of a few workers, each with one statement after
//! the other, would in time open all connections that the pool may have. Here the library's own statements need a permit,
//! and a permit is released only when its connection is idle in the pool, or kept ready for the next holder of the permit.
//! So no more connections are open than there are permits. Each runtime has its own permits: see [`PerRuntime`].
//!
//! Transactions of the user's keep their connections ready in the same way, for each other and for callers that wait for
//! one: the sign of life would be a round trip per transaction.
//!
//! The library's own loops do not wait for transactions. A pool that the library has opened gives transactions all
//! connections but one: see [`KeptForLibrary`]. Of the application's pool, and of a pool of one connection, transactions may
//! hold all connections: see [`Reserve`](crate::connection::reserve::Reserve).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::connection::borrowed::{Borrowed, GIVE_BACK};
use crate::connection::connect::Sessions;
use crate::connection::kept_for_library::{FILLING, HELD_UP, KeptForLibrary};
use crate::connection::per_runtime::{IdleTask, PerRuntime, Permits, Share};
use crate::connection::reserve::Reserved;

/// How many statements of the library's own run at a time on a runtime: a claim, the ends of attempts, and one for what
/// comes now and then (renewals, sweeps, upkeep, a call of the client's). With one more to announce and one to listen,
/// that makes the five of `docs/postgres.md`.
const STATEMENTS: usize = 3;

/// How long the pool may take to open a connection before its caller also takes a connection that another caller releases:
/// the server may have none left.
const OPENING: Duration = Duration::from_millis(250);

/// Who asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A transaction of the user's, whose statements need other settings than those of the library.
    Transaction,
    Library,
}

/// Permits for connections of a pool. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) pool: PgPool,
    sessions: Sessions,
    /// `Some` for a pool of two connections or more that the library has opened.
    pub(crate) kept: Option<Arc<KeptForLibrary>>,
    pub(crate) per_runtime: PerRuntime,
}

impl Budget {
    /// For a state.
    pub(crate) fn new(pool: PgPool, sessions: Sessions, kept: Option<Arc<KeptForLibrary>>) -> Self {
        let share = Share {
            statements: STATEMENTS,
            renewals: true,
        };
        Self::with(pool, share, sessions, kept)
    }

    /// For announcements, one at a time on each runtime. `kept` is the connection that the state of the same pool keeps from
    /// transactions.
    pub(crate) fn single(pool: PgPool, kept: Option<Arc<KeptForLibrary>>) -> Self {
        let share = Share {
            statements: 1,
            renewals: false,
        };
        Self::with(pool, share, Sessions::of_pooler(), kept)
    }

    fn with(pool: PgPool, share: Share, sessions: Sessions, kept: Option<Arc<KeptForLibrary>>) -> Self {
        let per_runtime = PerRuntime::new(share);
        Self {
            shared: Arc::new(Shared {
                pool,
                sessions,
                kept,
                per_runtime,
            }),
        }
    }

    /// For the library's own loops, which take turns, and do not wait for transactions of the user's.
    pub(crate) async fn for_worker(&self) -> Result<Borrowed, sqlx::Error> {
        let permits = self.shared.per_runtime.permits();
        let permit = self.permit(&permits).await?;
        let borrowed = match self.take_ready()? {
            Some(borrowed) => borrowed,
            // Boxed: it is large, and every statement of the library's own is around it.
            None => Box::pin(self.acquire_in_turn(&permits)).await?,
        };
        self.with_permit(borrowed, permit, None).for_library().await
    }

    async fn acquire_in_turn(&self, permits: &Permits) -> Result<Borrowed, sqlx::Error> {
        let reserved = self.reserved(permits, permits.reserve.take_turn(&self.shared.pool));
        or_reserved(self.acquire(Use::Library), reserved).await
    }

    /// A connection that transactions cannot have: the one that is kept from them, or else one beside the pool.
    async fn reserved(&self, permits: &Permits, beside: impl Future<Output = Reserved>) -> Borrowed {
        let can_spare = self.shared.can_spare();
        let hesitation = permits.reserve.hesitation(can_spare);
        let Some(kept) = &self.shared.kept else {
            tokio::time::sleep(hesitation).await;
            return Borrowed::reserved(beside.await);
        };
        let kept = async {
            if can_spare {
                tokio::time::sleep(hesitation).await;
            }
            kept.take().await
        };
        let beside = async {
            tokio::time::sleep(hesitation + HELD_UP).await;
            beside.await
        };
        tokio::select! {
            biased;
            mut borrowed = kept => {
                borrowed.budget = Arc::downgrade(&self.shared);
                borrowed
            }
            reserved = beside => Borrowed::reserved(reserved),
        }
    }

    /// For statements of the upkeep and looks of the notifier, which are in no hurry and may take long. They do not get a connection of the reserve.
    pub(crate) async fn for_upkeep(&self) -> Result<Borrowed, sqlx::Error> {
        let permit = self.permit(&self.shared.per_runtime.permits()).await?;
        self.take(permit, None).await
    }

    /// For renewals, which wait neither for transactions nor for the library's other statements.
    pub(crate) async fn for_renewal(&self) -> Result<Borrowed, sqlx::Error> {
        let shared = &self.shared;
        let permits = shared.per_runtime.permits();
        let in_turn = async {
            let permit = self.permit(&permits).await?;
            self.take(permit, None).await
        };
        // Renewals come early enough to wait for a turn for as long as the others do.
        let reserved = self.reserved(&permits, permits.reserve.renew(&shared.pool));
        Box::pin(or_reserved(in_turn, reserved)).await?.for_library().await
    }

    /// Closes what was opened beside the pool.
    pub(crate) async fn close_reserve(&self) {
        for permits in self.shared.per_runtime.all_permits() {
            permits.reserve.close().await;
        }
    }

    /// For calls of the client's outside of transactions. One call at a time gets a permit like the loops; the others are
    /// treated like transactions of the user's.
    pub(crate) async fn for_client(&self) -> Result<Borrowed, sqlx::Error> {
        let permits = self.shared.per_runtime.permits();
        match Arc::clone(&permits.client).try_acquire_owned() {
            Ok(client) => {
                let permit = self.permit(&permits).await?;
                self.take(permit, Some(client)).await
            }
            Err(_) => self.beside_library(Use::Library).await?.for_library().await,
        }
    }

    /// For transactions of the user's, which wait for nothing but the pool and each other. The session has the settings of the
    /// caller's statements.
    pub(crate) async fn for_transaction(&self) -> Result<Borrowed, sqlx::Error> {
        let mut borrowed = self.beside_library(Use::Transaction).await?;
        if let Some(settings) = self.shared.sessions.caller_settings() {
            borrowed.apply(settings).await?;
        }
        Ok(borrowed)
    }

    /// A connection other than the one that is kept for the library.
    async fn beside_library(&self, purpose: Use) -> Result<Borrowed, sqlx::Error> {
        let Some(kept) = &self.shared.kept else {
            let mut borrowed = self.acquire(purpose).await?;
            borrowed.budget = Arc::downgrade(&self.shared);
            return Ok(borrowed);
        };
        let acquiring = async {
            let permit = kept.permit_transaction().await?;
            if kept.is_missing() {
                Box::pin(self.keep_one_for_library(kept)).await?;
            }
            let mut borrowed = self.acquire(purpose).await?;
            borrowed.budget = Arc::downgrade(&self.shared);
            borrowed.transaction = Some(kept.admit(permit));
            Ok(borrowed)
        };
        let patience = self.shared.pool.options().get_acquire_timeout();
        let acquired = tokio::time::timeout(patience, acquiring).await;
        acquired.map_err(|_| sqlx::Error::PoolTimedOut)?
    }

    /// Keeps a connection for the library, before another transaction takes the last one that can be had.
    async fn keep_one_for_library(&self, kept: &Arc<KeptForLibrary>) -> Result<(), sqlx::Error> {
        let Ok(_turn) = tokio::time::timeout(FILLING, kept.filling.lock()).await else {
            return Ok(());
        };
        let Some(filling) = kept.begin_filling() else {
            return Ok(());
        };
        let mut borrowed = self.acquire(Use::Library).await?;
        borrowed.budget = Arc::downgrade(&self.shared);
        borrowed.used = Instant::now();
        filling.put(borrowed);
        IdleTask::start(&self.shared);
        Ok(())
    }

    /// A connection that is kept ready, or becomes so before the pool has one.
    async fn acquire(&self, purpose: Use) -> Result<Borrowed, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let can_spare = self.shared.can_spare();
        let (borrowed, left) = self.shared.per_runtime.here(|share_of_runtime| {
            let borrowed = share_of_runtime.take_released(purpose);
            let left = match &borrowed {
                Some(borrowed) if borrowed.is_usable() => None,
                // A caller for which the pool opens a connection waits for that one: a connection that is given up half made
                // costs the server a process.
                _ => (!can_spare).then(|| share_of_runtime.wait()),
            };
            (borrowed, left)
        });
        // A stale connection is not dropped under the lock: its drop spawns a task, which a runtime that is ending drops right
        // there.
        if let Some(borrowed) = borrowed.filter(Borrowed::is_usable) {
            return Ok(borrowed);
        }
        let mut open = pin!(self.shared.open());
        let mut left = match left {
            Some(left) => {
                // The connection of another runtime comes by way of the pool, which tests whether it can be used here.
                drop(self.shared.per_runtime.take_from_others());
                left
            }
            None => {
                tokio::select! {
                    biased;
                    opened = &mut open => return opened,
                    () = tokio::time::sleep(OPENING) => {}
                }
                let (borrowed, left) = self
                    .shared
                    .per_runtime
                    .here(|share_of_runtime| (share_of_runtime.take_released(purpose), share_of_runtime.wait()));
                if let Some(borrowed) = borrowed.filter(Borrowed::is_usable) {
                    return Ok(borrowed);
                }
                left
            }
        };
        let mut waits = true;
        loop {
            tokio::select! {
                biased;
                borrowed = &mut left, if waits => match borrowed {
                    Ok(borrowed) => return Ok(borrowed),
                    Err(_) => waits = false,
                },
                opened = &mut open => return opened,
                () = tokio::time::sleep(OPENING) => {
                    // While the pool tries to open a connection, it does not see those that came back meanwhile.
                    if self.shared.pool.num_idle() > 0 {
                        open.set(self.shared.open());
                    }
                }
            }
        }
    }

    async fn permit(&self, permits: &Permits) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let patience = self.shared.pool.options().get_acquire_timeout();
        let permit = tokio::time::timeout(patience, Arc::clone(&permits.statements).acquire_owned()).await;
        // The same error as the pool gives.
        permit
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)
    }

    async fn take(
        &self,
        permit: OwnedSemaphorePermit,
        client: Option<OwnedSemaphorePermit>,
    ) -> Result<Borrowed, sqlx::Error> {
        let borrowed = match self.take_ready()? {
            Some(borrowed) => borrowed,
            None => self.acquire(Use::Library).await?,
        };
        self.with_permit(borrowed, permit, client).for_library().await
    }

    /// A connection that is kept ready for the permit of the caller.
    fn take_ready(&self) -> Result<Option<Borrowed>, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let ready = self
            .shared
            .per_runtime
            .here(|share_of_runtime| share_of_runtime.ready.pop());
        Ok(ready.filter(|borrowed| borrowed.is_usable()))
    }

    fn with_permit(
        &self,
        mut borrowed: Borrowed,
        permit: OwnedSemaphorePermit,
        client: Option<OwnedSemaphorePermit>,
    ) -> Borrowed {
        if !borrowed.reserved {
            borrowed.budget = Arc::downgrade(&self.shared);
        }
        (borrowed.permit, borrowed.client) = (Some(permit), client);
        borrowed
    }
}

/// A connection of the pool, or of the reserve if that is there first.
async fn or_reserved(
    usual: impl Future<Output = Result<Borrowed, sqlx::Error>>,
    reserved: impl Future<Output = Borrowed>,
) -> Result<Borrowed, sqlx::Error> {
    let mut reserved = pin!(reserved);
    let usual = tokio::select! {
        biased;
        usual = usual => usual,
        reserved = &mut reserved => return Ok(reserved),
    };
    match usual {
        // The timeout of the pool may be shorter than it takes to open a connection.
        Err(sqlx::Error::PoolTimedOut) => match tokio::time::timeout(GIVE_BACK, reserved).await {
            Ok(reserved) => Ok(reserved),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        },
        usual => usual,
    }
}

impl Shared {
    /// A connection of the pool's.
    async fn open(&self) -> Result<Borrowed, sqlx::Error> {
        let mut acquired = self.pool.acquire().await;
        if self.sessions.heard(&acquired, &self.pool) {
            acquired = self.pool.acquire().await;
        }
        acquired.map(Borrowed::new)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    /// Whether the pool can serve other callers while a connection is kept from it.
    pub(super) fn can_spare(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }
}
