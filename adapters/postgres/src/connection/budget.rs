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

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::__task::spawn_on;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{Connection, PgConnection, PgPool, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::{Handle, Id};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::connection::connect::{FRESH, SIGN_OF_LIFE, Sessions, hears};
use crate::connection::kept_for_library::{FILLING, HELD_UP, KeptForLibrary, TransactionPermit};
use crate::connection::per_runtime::{IdleTask, PerRuntime, Permits, Share, current_runtime};
use crate::connection::reserve::Reserved;

/// How many statements of the library's own run at a time on a runtime: a claim, the ends of attempts, and one for what
/// comes now and then (renewals, sweeps, upkeep, a call of the client's). With one more to announce and one to listen,
/// that makes the five of `docs/postgres.md`.
const STATEMENTS: usize = 3;

/// How long a connection may take to become idle, or to close, before it is dropped. The server may not answer any more,
/// and the permit is needed.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// How long a connection is kept from the pool at most. The pool closes connections that are too old.
const KEPT: Duration = Duration::from_secs(30);

/// The same where the pool has no other connection: callers that this library knows nothing of may wait for one.
const KEPT_FROM_OTHERS: Duration = Duration::from_millis(100);

/// How long the pool may take to open a connection before its caller also takes a connection that another caller releases:
/// the server may have none left.
const OPENING: Duration = Duration::from_millis(250);

/// Permits for connections of a pool. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pool: PgPool,
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
        Ok(self.with_permit(borrowed, permit, None))
    }

    async fn acquire_in_turn(&self, permits: &Permits) -> Result<Borrowed, sqlx::Error> {
        let reserved = self.reserved(permits, permits.reserve.take_turn(&self.shared.pool));
        or_reserved(self.acquire(), reserved).await
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
        Box::pin(or_reserved(in_turn, reserved)).await
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
            Err(_) => self.for_transaction().await,
        }
    }

    /// For transactions of the user's, which wait for nothing but the pool and each other.
    pub(crate) async fn for_transaction(&self) -> Result<Borrowed, sqlx::Error> {
        let Some(kept) = &self.shared.kept else {
            let mut borrowed = self.acquire().await?;
            borrowed.budget = Arc::downgrade(&self.shared);
            return Ok(borrowed);
        };
        let acquiring = async {
            let permit = kept.permit_transaction().await?;
            if kept.is_missing() {
                Box::pin(self.keep_one_for_library(kept)).await?;
            }
            let mut borrowed = self.acquire().await?;
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
        let mut borrowed = self.acquire().await?;
        borrowed.budget = Arc::downgrade(&self.shared);
        borrowed.used = Instant::now();
        filling.put(borrowed);
        IdleTask::start(&self.shared);
        Ok(())
    }

    /// A connection that is kept ready, or becomes so before the pool has one.
    async fn acquire(&self) -> Result<Borrowed, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let can_spare = self.shared.can_spare();
        let (borrowed, left) = self.shared.per_runtime.here(|share_of_runtime| {
            let borrowed = share_of_runtime.from_transactions.pop();
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
                    .here(|share_of_runtime| (share_of_runtime.from_transactions.pop(), share_of_runtime.wait()));
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
            None => self.acquire().await?,
        };
        Ok(self.with_permit(borrowed, permit, client))
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
    fn can_spare(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }
}

/// A borrowed connection. Dropped, it goes back to where it came from, and a transaction that is open is rolled back.
pub(crate) struct Borrowed {
    /// `Some` until the value is dropped.
    connection: Option<PoolConnection<Postgres>>,
    /// Released when the connection is idle in the pool.
    permit: Option<OwnedSemaphorePermit>,
    /// The permit of the client, released at once, so that the same caller's next call finds it free.
    client: Option<OwnedSemaphorePermit>,
    /// Whether the connection is of the reserve, to which it goes back at once.
    reserved: bool,
    /// The turn of the borrower at the reserve.
    turn: Option<OwnedSemaphorePermit>,
    /// The permit of a transaction of the user's, released like `permit`.
    transaction: Option<TransactionPermit>,
    /// Where the connection goes back to if it is the one that is kept from transactions.
    kept: Option<Arc<KeptForLibrary>>,
    /// Where the connection may be kept ready.
    budget: Weak<Shared>,
    since: Instant,
    used: Instant,
    /// The runtime on which the connection was last used: on another one it may be dead, or never receive an answer.
    runtime: Option<Id>,
    /// Whether it is unknown if a transaction is open.
    is_unclear: bool,
}

impl Borrowed {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            permit: None,
            client: None,
            reserved: false,
            turn: None,
            transaction: None,
            kept: None,
            budget: Weak::new(),
            since: Instant::now(),
            used: Instant::now(),
            runtime: current_runtime(),
            is_unclear: false,
        }
    }

    fn reserved(Reserved { connection, turn }: Reserved) -> Self {
        let mut borrowed = Self::new(connection);
        (borrowed.reserved, borrowed.turn) = (true, turn);
        borrowed
    }

    /// Whether a connection that was kept ready may be used on this runtime now.
    fn is_usable(&self) -> bool {
        self.used.elapsed() < FRESH && self.runtime == current_runtime()
    }

    /// Whether the connection can be used on this runtime now, also if it was not used for a while: then it asks the server.
    pub(crate) async fn answers(&mut self) -> bool {
        if self.is_usable() {
            return true;
        }
        let here = current_runtime();
        let stayed = self.runtime == here;
        let answer = async { if stayed { self.ping().await } else { hears(self).await } };
        let answers = tokio::time::timeout(SIGN_OF_LIFE, answer)
            .await
            .is_ok_and(|answer| answer.is_ok());
        self.is_unclear |= !answers;
        self.runtime = here;
        answers
    }

    /// Makes the connection go back to where it is kept for the library.
    pub(crate) fn keep_for(&mut self, kept: Arc<KeptForLibrary>) {
        self.kept = Some(kept);
    }

    /// When the connection was released.
    pub(crate) fn used(&self) -> Instant {
        self.used
    }

    /// Gives the connection a permit for its way back to the pool.
    pub(crate) fn give_permit(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }

    /// Begins a transaction with this statement.
    pub(crate) async fn begin(&mut self, statement: SqlStr) -> Result<(), sqlx::Error> {
        // A caller that drops this future has sent a BEGIN of which the driver knows nothing. The pool would lend the
        // connection to another caller, whose statements would be in a transaction that is never committed.
        self.is_unclear = true;
        PgTransactionManager::begin(self, Some(statement)).await?;
        self.is_unclear = false;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::commit(self).await
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        // Nested transactions that were left open go first.
        while self.depth() > 0 {
            PgTransactionManager::rollback(self).await?;
        }
        Ok(())
    }

    /// How many transactions are open, one in the other.
    pub(crate) fn depth(&self) -> usize {
        PgTransactionManager::get_transaction_depth(self)
    }

    /// Keeps the connection ready for the next holder of the permit. Only for a connection whose last statement was answered:
    /// one that is dropped goes back to the pool, which tests it.
    pub(crate) fn release(mut self) {
        let Some(budget) = self.budget.upgrade() else {
            return;
        };
        if let Some(kept) = self.kept.take_if(|_| !budget.pool.is_closed()) {
            let permit = self.permit.take();
            (self.used, self.runtime) = (Instant::now(), current_runtime());
            kept.put(self);
            IdleTask::start(&budget);
            drop(permit);
            return;
        }
        let can_spare = budget.can_spare();
        let kept = if can_spare { KEPT } else { KEPT_FROM_OTHERS };
        if self.since.elapsed() >= kept || budget.pool.is_closed() {
            return;
        }
        let (permit, transaction) = (self.permit.take(), self.transaction.take());
        self.client = None;
        self.used = Instant::now();
        let runtime = current_runtime();
        // A permit of another runtime is of no use on this one.
        let has_permit = permit.is_some() && self.runtime == runtime;
        self.runtime = runtime;
        budget
            .per_runtime
            .here(|share_of_runtime| match share_of_runtime.hand(self) {
                None => {}
                Some(borrowed) if has_permit && can_spare => share_of_runtime.ready.push(borrowed),
                Some(borrowed) => share_of_runtime.from_transactions.push(borrowed),
            });
        IdleTask::start(&budget);
        // Released last, so that the next holder finds the connection.
        drop((permit, transaction));
    }
}

const HELD: &str = "the connection is there until the value is dropped";

impl Deref for Borrowed {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(HELD)
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(HELD)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        while self.depth() > 0 {
            PgTransactionManager::start_rollback(self);
        }
        if let Some(kept) = self.kept.take() {
            kept.lost();
        }
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let (permit, turn, is_unclear) = (self.permit.take(), self.turn.take(), self.is_unclear);
        let transaction = self.transaction.take();
        // Without a runtime nothing can be sent to the server, and the pool cannot be used.
        let Ok(runtime) = Handle::try_current() else {
            drop(connection.return_to_pool());
            return;
        };
        spawn_on(&runtime, async move {
            let back = async {
                if is_unclear {
                    drop(connection.close().await)
                } else {
                    connection.return_to_pool().await
                }
            };
            // The result does not matter: a connection that is not idle now is closed.
            let _ = tokio::time::timeout(GIVE_BACK, back).await;
            drop((permit, turn, transaction));
        });
    }
}

impl fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed")
            .field("is_unclear", &self.is_unclear)
            .finish_non_exhaustive()
    }
}
