//! Connections that the library borrows from the pool for what it does by itself, a few at a time.
//!
//! A pool opens another connection whenever somebody asks and none is idle, and a connection that was given back is not
//! idle at once: a task asks the server for a sign of life first. So the loops of a few workers, each with one statement
//! after the other, would in time open all that the pool may have. Here a place is given up only when the connection is
//! idle in the pool, or lies ready for whoever has the place next, so there are never more open than there are places.
//! Each runtime has places of its own: see [`Locals`].
//!
//! Transactions of the user's leave their connections in the same way, for each other and for whoever waits for one: the
//! sign of life would be a round trip per transaction.
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
use crate::connection::per_runtime::{Gates, Locals, Share, Sweeper, current_runtime};
use crate::connection::reserve::Reserved;

/// How many statements of the library's own run at a time on a runtime: a claim, the ends of attempts, and one for what
/// comes now and then (renewals, sweeps, upkeep, a call of the client's). With one more to announce and one to listen,
/// that makes the five of `docs/postgres.md`.
const PLACES: usize = 3;

/// How long a connection may take to become idle, or to close, before it is dropped. The server may have fallen silent,
/// and the place is needed.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// How long a connection is kept from the pool at most, which closes those that are too old.
const KEPT: Duration = Duration::from_secs(30);

/// The same where the pool has nothing else to give: others may wait there, of whom nothing is known here.
const KEPT_FROM_OTHERS: Duration = Duration::from_millis(100);

/// Places for connections of a pool. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pool: PgPool,
    sessions: Sessions,
    pub(crate) locals: Locals,
}

impl Budget {
    /// For a state.
    pub(crate) fn new(pool: PgPool, sessions: Sessions) -> Self {
        let share = Share {
            places: PLACES,
            renewals: true,
        };
        Self::with(pool, share, sessions)
    }

    /// For announcements, one at a time on each runtime.
    pub(crate) fn single(pool: PgPool) -> Self {
        let share = Share {
            places: 1,
            renewals: false,
        };
        Self::with(pool, share, Sessions::of_pooler())
    }

    fn with(pool: PgPool, share: Share, sessions: Sessions) -> Self {
        let locals = Locals::new(share);
        Self {
            shared: Arc::new(Shared { pool, sessions, locals }),
        }
    }

    /// For the library's own loops, which take turns, and do not wait for transactions of the user's.
    pub(crate) async fn for_worker(&self) -> Result<Borrowed, sqlx::Error> {
        let gates = self.shared.locals.gates();
        let place = self.place(&gates).await?;
        let lent = match self.take_ready()? {
            Some(lent) => lent,
            // Boxed: it is large, and every statement of the library's own is around it.
            None => Box::pin(self.acquire_in_turn(&gates)).await?,
        };
        Ok(self.place_in(lent, place, None))
    }

    async fn acquire_in_turn(&self, gates: &Gates) -> Result<Borrowed, sqlx::Error> {
        let shared = &self.shared;
        let reserved = async {
            tokio::time::sleep(gates.reserve.hesitation(shared.can_spare())).await;
            gates.reserve.take_turn(&shared.pool).await
        };
        or_reserved(self.acquire(), reserved).await
    }

    /// For statements of the library's own that are in no hurry and may take long. They must not hold up the others where
    /// those have little to share.
    pub(crate) async fn for_upkeep(&self) -> Result<Borrowed, sqlx::Error> {
        let place = self.place(&self.shared.locals.gates()).await?;
        self.take(place, None).await
    }

    /// For renewals, which wait for nobody: neither for transactions nor for the library's other statements.
    pub(crate) async fn for_renewal(&self) -> Result<Borrowed, sqlx::Error> {
        let shared = &self.shared;
        let gates = shared.locals.gates();
        let in_turn = async {
            let place = self.place(&gates).await?;
            self.take(place, None).await
        };
        let reserved = async {
            // Renewals come early enough to wait this long for a turn.
            let hesitation = gates.reserve.hesitation(shared.can_spare());
            tokio::time::sleep(hesitation).await;
            gates.reserve.renew(&shared.pool).await
        };
        Box::pin(or_reserved(in_turn, reserved)).await
    }

    /// Closes what was opened beside the pool.
    pub(crate) async fn close_reserve(&self) {
        for gates in self.shared.locals.all_gates() {
            gates.reserve.close().await;
        }
    }

    /// For calls of the client's outside of transactions. One at a time takes its turn like the loops; what is under way
    /// beside it is as good as a transaction of the user's, and gets what the pool can give.
    pub(crate) async fn for_client(&self) -> Result<Borrowed, sqlx::Error> {
        let gates = self.shared.locals.gates();
        match Arc::clone(&gates.guest).try_acquire_owned() {
            Ok(guest) => {
                let place = self.place(&gates).await?;
                self.take(place, Some(guest)).await
            }
            Err(_) => self.for_transaction().await,
        }
    }

    /// For transactions of the user's, which wait for nothing but the pool.
    pub(crate) async fn for_transaction(&self) -> Result<Borrowed, sqlx::Error> {
        let mut lent = self.acquire().await?;
        lent.budget = Arc::downgrade(&self.shared);
        Ok(lent)
    }

    /// What somebody has left, or leaves before the pool has one.
    async fn acquire(&self) -> Result<Borrowed, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let can_spare = self.shared.can_spare();
        let (lent, left) = self.shared.locals.here(|local| {
            let lent = local.spare.pop();
            let left = match &lent {
                Some(lent) if lent.is_usable() => None,
                // Whoever the pool opens one for waits for that one: a connection that is given up half made costs the
                // server a process.
                _ => (!can_spare).then(|| local.wait()),
            };
            (lent, left)
        });
        // A stale one is not dropped under the lock: that makes a task, which a runtime that is ending drops right there.
        if let Some(lent) = lent.filter(Borrowed::is_usable) {
            return Ok(lent);
        }
        let Some(left) = left else {
            return self.shared.open().await;
        };
        // By way of the pool, which tests whether it can be used here.
        drop(self.shared.locals.take_from_others());
        tokio::select! {
            biased;
            Ok(lent) = left => Ok(lent),
            opened = self.shared.open() => opened,
        }
    }

    async fn place(&self, gates: &Gates) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let patience = self.shared.pool.options().get_acquire_timeout();
        let place = tokio::time::timeout(patience, Arc::clone(&gates.places).acquire_owned()).await;
        // As from the pool, to whose users it makes no difference.
        place
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)
    }

    async fn take(
        &self,
        place: OwnedSemaphorePermit,
        guest: Option<OwnedSemaphorePermit>,
    ) -> Result<Borrowed, sqlx::Error> {
        let lent = match self.take_ready()? {
            Some(lent) => lent,
            None => self.acquire().await?,
        };
        Ok(self.place_in(lent, place, guest))
    }

    /// What lies ready for the place that the caller has.
    fn take_ready(&self) -> Result<Option<Borrowed>, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let ready = self.shared.locals.here(|local| local.connections.pop());
        Ok(ready.filter(|lent| lent.is_usable()))
    }

    fn place_in(
        &self,
        mut lent: Borrowed,
        place: OwnedSemaphorePermit,
        guest: Option<OwnedSemaphorePermit>,
    ) -> Borrowed {
        if !lent.reserved {
            lent.budget = Arc::downgrade(&self.shared);
        }
        (lent.place, lent.guest) = (Some(place), guest);
        lent
    }
}

/// What the pool gives, or else the reserve.
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
        // The pool's patience may be shorter than it takes to open a connection.
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

    /// Whether others find something in the pool while this one is kept from it.
    fn can_spare(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }
}

/// A connection of the pool, to which it goes back when this is dropped; a transaction that is open is rolled back.
pub(crate) struct Borrowed {
    /// There until it is dropped.
    connection: Option<PoolConnection<Postgres>>,
    /// Given up when the connection is idle in the pool.
    place: Option<OwnedSemaphorePermit>,
    /// Given up at once, so that the same caller's next call finds it free.
    guest: Option<OwnedSemaphorePermit>,
    /// Whether it is of the reserve, to which it goes back at once; with the turn of its borrower there.
    reserved: bool,
    turn: Option<OwnedSemaphorePermit>,
    /// Where it may lie ready.
    budget: Weak<Shared>,
    since: Instant,
    used: Instant,
    /// The runtime on which it was last used: on another one it may be dead, or never hear an answer.
    runtime: Option<Id>,
    /// Whether nobody knows if a transaction is open.
    torn: bool,
}

impl Borrowed {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            place: None,
            guest: None,
            reserved: false,
            turn: None,
            budget: Weak::new(),
            since: Instant::now(),
            used: Instant::now(),
            runtime: current_runtime(),
            torn: false,
        }
    }

    fn reserved(Reserved { connection, turn }: Reserved) -> Self {
        let mut lent = Self::new(connection);
        (lent.reserved, lent.turn) = (true, turn);
        lent
    }

    /// Whether one that lay ready may be used here and now.
    fn is_usable(&self) -> bool {
        self.used.elapsed() < FRESH && self.runtime == current_runtime()
    }

    /// When it was left.
    pub(crate) fn used(&self) -> Instant {
        self.used
    }

    /// Gives it a place for its way back to the pool.
    pub(crate) fn put_in(&mut self, place: OwnedSemaphorePermit) {
        self.place = Some(place);
    }

    /// Begins a transaction with this statement.
    pub(crate) async fn begin(&mut self, statement: SqlStr) -> Result<(), sqlx::Error> {
        // Whoever drops this future has sent a BEGIN of which the driver knows nothing. The pool would give the
        // connection to the next one, whose statements would be in a transaction that nobody commits.
        self.torn = true;
        PgTransactionManager::begin(self, Some(statement)).await?;
        self.torn = false;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::commit(self).await
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        // What was nested and left open goes first.
        while self.depth() > 0 {
            PgTransactionManager::rollback(self).await?;
        }
        Ok(())
    }

    /// How many transactions are open, one in the other.
    pub(crate) fn depth(&self) -> usize {
        PgTransactionManager::get_transaction_depth(self)
    }

    /// Leaves the connection for whoever has the place next. For those whose last statement was answered: one that is
    /// dropped goes through the pool, which finds out what has become of it.
    pub(crate) fn leave(mut self) {
        let Some(budget) = self.budget.upgrade() else {
            return;
        };
        let can_spare = budget.can_spare();
        let kept = if can_spare { KEPT } else { KEPT_FROM_OTHERS };
        if self.since.elapsed() >= kept || budget.pool.is_closed() {
            return;
        }
        let place = self.place.take();
        self.guest = None;
        self.used = Instant::now();
        let runtime = current_runtime();
        // The place of another runtime is not for whoever is next on this one.
        let has_place = place.is_some() && self.runtime == runtime;
        self.runtime = runtime;
        budget.locals.here(|local| match local.hand(self) {
            None => {}
            Some(lent) if has_place && can_spare => local.connections.push(lent),
            Some(lent) => local.spare.push(lent),
        });
        Sweeper::start(&budget);
        // The next one finds what was left.
        drop(place);
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
        let (place, turn, torn) = (self.place.take(), self.turn.take(), self.torn);
        // Without a runtime there is nobody to talk to the server, and no pool that could be used.
        let Ok(runtime) = Handle::try_current() else {
            drop(connection.return_to_pool());
            return;
        };
        spawn_on(&runtime, async move {
            let back = async {
                match torn {
                    true => drop(connection.close().await),
                    false => connection.return_to_pool().await,
                }
            };
            // What comes of it does not matter: a connection that is not idle now is closed.
            let _ = tokio::time::timeout(GIVE_BACK, back).await;
            drop((place, turn));
        });
    }
}

impl fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed")
            .field("torn", &self.torn)
            .finish_non_exhaustive()
    }
}
