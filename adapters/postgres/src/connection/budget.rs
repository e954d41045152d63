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
//! Transactions may hold all connections of the pool. The library's own loops do not wait for them: see
//! [`Reserve`](crate::connection::reserve::Reserve).

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::__task::spawn_on;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, PgPool, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::{Handle, Id};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::connection::connect::{FRESH, Sessions};
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

/// Permits for connections of a pool. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pool: PgPool,
    sessions: Sessions,
    pub(crate) per_runtime: PerRuntime,
}

impl Budget {
    /// For a state.
    pub(crate) fn new(pool: PgPool, sessions: Sessions) -> Self {
        let share = Share {
            statements: STATEMENTS,
            renewals: true,
        };
        Self::with(pool, share, sessions)
    }

    /// For announcements, one at a time on each runtime.
    pub(crate) fn single(pool: PgPool) -> Self {
        let share = Share {
            statements: 1,
            renewals: false,
        };
        Self::with(pool, share, Sessions::of_pooler())
    }

    fn with(pool: PgPool, share: Share, sessions: Sessions) -> Self {
        let per_runtime = PerRuntime::new(share);
        Self {
            shared: Arc::new(Shared {
                pool,
                sessions,
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
        let shared = &self.shared;
        let reserved = async {
            tokio::time::sleep(permits.reserve.hesitation(shared.can_spare())).await;
            permits.reserve.take_turn(&shared.pool).await
        };
        or_reserved(self.acquire(), reserved).await
    }

    /// For statements of the upkeep, which are in no hurry and may take long. They do not get a connection of the reserve.
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
        let reserved = async {
            // Renewals come early enough to wait this long for a turn.
            let hesitation = permits.reserve.hesitation(shared.can_spare());
            tokio::time::sleep(hesitation).await;
            permits.reserve.renew(&shared.pool).await
        };
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

    /// For transactions of the user's, which wait for nothing but the pool.
    pub(crate) async fn for_transaction(&self) -> Result<Borrowed, sqlx::Error> {
        let mut borrowed = self.acquire().await?;
        borrowed.budget = Arc::downgrade(&self.shared);
        Ok(borrowed)
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
        let Some(left) = left else {
            return self.shared.open().await;
        };
        // The connection of another runtime comes by way of the pool, which tests whether it can be used here.
        drop(self.shared.per_runtime.take_from_others());
        tokio::select! {
            biased;
            Ok(borrowed) = left => Ok(borrowed),
            opened = self.shared.open() => opened,
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
    reserved: impl Future<Output = Reserved>,
) -> Result<Borrowed, sqlx::Error> {
    let mut reserved = pin!(reserved);
    let usual = tokio::select! {
        biased;
        usual = usual => usual,
        reserved = &mut reserved => return Ok(Borrowed::reserved(reserved)),
    };
    match usual {
        // The timeout of the pool may be shorter than it takes to open a connection.
        Err(sqlx::Error::PoolTimedOut) => match tokio::time::timeout(GIVE_BACK, reserved).await {
            Ok(reserved) => Ok(Borrowed::reserved(reserved)),
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
        let can_spare = budget.can_spare();
        let kept = if can_spare { KEPT } else { KEPT_FROM_OTHERS };
        if self.since.elapsed() >= kept || budget.pool.is_closed() {
            return;
        }
        let permit = self.permit.take();
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
        drop(permit);
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
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let (permit, turn, is_unclear) = (self.permit.take(), self.turn.take(), self.is_unclear);
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
            drop((permit, turn));
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
