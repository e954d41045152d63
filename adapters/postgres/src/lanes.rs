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
//! The library's own loops do not wait for transactions. Of a pool that the library has opened, transactions get all
//! connections but one: see [`Kept`](crate::kept::Kept). Of the application's pool, and of a pool of one connection, they
//! may hold all: see [`Reserve`](crate::reserve::Reserve).

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

use crate::connect::{FRESH, SIGN_OF_LIFE, Sessions, hears};
use crate::kept::{FILLING, HELD_UP, Kept, Seat};
use crate::lanes_local::{Gates, Locals, Share, Sweeper, current_runtime};
use crate::reserve::Reserved;

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

/// How long the pool may take to open a connection before its caller takes what others leave, too: the server may have none
/// left to give.
const OPENING: Duration = Duration::from_millis(250);

/// Places for connections of a pool. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pool: PgPool,
    sessions: Sessions,
    /// Of a pool that the library has opened, unless it is one of one connection.
    pub(crate) kept: Option<Arc<Kept>>,
    pub(crate) locals: Locals,
}

impl Lanes {
    /// For a state.
    pub(crate) fn new(pool: PgPool, sessions: Sessions, kept: Option<Arc<Kept>>) -> Self {
        let share = Share {
            places: PLACES,
            renewals: true,
        };
        Self::with(pool, share, sessions, kept)
    }

    /// For announcements, one at a time on each runtime; with what the state of the same pool keeps from transactions.
    pub(crate) fn single(pool: PgPool, kept: Option<Arc<Kept>>) -> Self {
        let share = Share {
            places: 1,
            renewals: false,
        };
        Self::with(pool, share, Sessions::of_pooler(), kept)
    }

    fn with(pool: PgPool, share: Share, sessions: Sessions, kept: Option<Arc<Kept>>) -> Self {
        let locals = Locals::new(share);
        Self {
            shared: Arc::new(Shared {
                pool,
                sessions,
                kept,
                locals,
            }),
        }
    }

    /// For the library's own loops, which take turns, and do not wait for transactions of the user's.
    pub(crate) async fn enter(&self) -> Result<Lent, sqlx::Error> {
        let gates = self.shared.locals.gates();
        let place = self.place(&gates).await?;
        let lent = match self.take_ready()? {
            Some(lent) => lent,
            // Boxed: it is large, and every statement of the library's own is around it.
            None => Box::pin(self.acquire_in_turn(&gates)).await?,
        };
        Ok(self.place_in(lent, place, None))
    }

    async fn acquire_in_turn(&self, gates: &Gates) -> Result<Lent, sqlx::Error> {
        let reserved = self.reserved(gates, gates.reserve.take_turn(&self.shared.pool));
        or_reserved(self.acquire(), reserved).await
    }

    /// What transactions cannot have: the connection that is kept from them, or else one beside the pool.
    async fn reserved(&self, gates: &Gates, beside: impl Future<Output = Reserved>) -> Lent {
        let can_spare = self.shared.can_spare();
        let hesitation = gates.reserve.hesitation(can_spare);
        let Some(kept) = &self.shared.kept else {
            tokio::time::sleep(hesitation).await;
            return Lent::reserved(beside.await);
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
            mut lent = kept => {
                lent.lanes = Arc::downgrade(&self.shared);
                lent
            }
            reserved = beside => Lent::reserved(reserved),
        }
    }

    /// For statements of the library's own that are in no hurry and may take long. They must not hold up the others where
    /// those have little to share.
    pub(crate) async fn enter_at_leisure(&self) -> Result<Lent, sqlx::Error> {
        let place = self.place(&self.shared.locals.gates()).await?;
        self.take(place, None).await
    }

    /// For renewals, which wait for nobody: neither for transactions nor for the library's other statements.
    pub(crate) async fn renew(&self) -> Result<Lent, sqlx::Error> {
        let shared = &self.shared;
        let gates = shared.locals.gates();
        let in_turn = async {
            let place = self.place(&gates).await?;
            self.take(place, None).await
        };
        // Renewals come early enough to wait for a turn for as long as the others do.
        let reserved = self.reserved(&gates, gates.reserve.renew(&shared.pool));
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
    pub(crate) async fn visit(&self) -> Result<Lent, sqlx::Error> {
        let gates = self.shared.locals.gates();
        match Arc::clone(&gates.guest).try_acquire_owned() {
            Ok(guest) => {
                let place = self.place(&gates).await?;
                self.take(place, Some(guest)).await
            }
            Err(_) => self.pass().await,
        }
    }

    /// For transactions of the user's, which wait for nothing but the pool and each other.
    pub(crate) async fn pass(&self) -> Result<Lent, sqlx::Error> {
        let Some(kept) = &self.shared.kept else {
            let mut lent = self.acquire().await?;
            lent.lanes = Arc::downgrade(&self.shared);
            return Ok(lent);
        };
        let passing = async {
            let permit = kept.reserve_seat().await?;
            if kept.is_missing() {
                Box::pin(self.set_aside(kept)).await?;
            }
            let mut lent = self.acquire().await?;
            lent.lanes = Arc::downgrade(&self.shared);
            lent.seat = Some(kept.sit(permit));
            Ok(lent)
        };
        let patience = self.shared.pool.options().get_acquire_timeout();
        let passed = tokio::time::timeout(patience, passing).await;
        passed.map_err(|_| sqlx::Error::PoolTimedOut)?
    }

    /// Sets a connection aside for the library, before another transaction takes the last one that can be had.
    async fn set_aside(&self, kept: &Arc<Kept>) -> Result<(), sqlx::Error> {
        let Ok(_turn) = tokio::time::timeout(FILLING, kept.filling.lock()).await else {
            return Ok(());
        };
        let Some(filling) = kept.begin_filling() else {
            return Ok(());
        };
        let mut lent = self.acquire().await?;
        lent.lanes = Arc::downgrade(&self.shared);
        lent.used = Instant::now();
        filling.put(lent);
        Sweeper::start(&self.shared);
        Ok(())
    }

    /// What somebody has left, or leaves before the pool has one.
    async fn acquire(&self) -> Result<Lent, sqlx::Error> {
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
        if let Some(lent) = lent.filter(Lent::is_usable) {
            return Ok(lent);
        }
        let mut open = pin!(self.shared.open());
        let mut left = match left {
            Some(left) => {
                // By way of the pool, which tests whether it can be used here.
                drop(self.shared.locals.take_from_others());
                left
            }
            None => {
                tokio::select! {
                    biased;
                    opened = &mut open => return opened,
                    () = tokio::time::sleep(OPENING) => {}
                }
                let (lent, left) = self.shared.locals.here(|local| (local.spare.pop(), local.wait()));
                if let Some(lent) = lent.filter(Lent::is_usable) {
                    return Ok(lent);
                }
                left
            }
        };
        let mut waits = true;
        loop {
            tokio::select! {
                biased;
                lent = &mut left, if waits => match lent {
                    Ok(lent) => return Ok(lent),
                    Err(_) => waits = false,
                },
                opened = &mut open => return opened,
                () = tokio::time::sleep(OPENING) => {
                    // The pool tries to open one, and does not see those that came back meanwhile.
                    if self.shared.pool.num_idle() > 0 {
                        open.set(self.shared.open());
                    }
                }
            }
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
    ) -> Result<Lent, sqlx::Error> {
        let lent = match self.take_ready()? {
            Some(lent) => lent,
            None => self.acquire().await?,
        };
        Ok(self.place_in(lent, place, guest))
    }

    /// What lies ready for the place that the caller has.
    fn take_ready(&self) -> Result<Option<Lent>, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let ready = self.shared.locals.here(|local| local.connections.pop());
        Ok(ready.filter(|lent| lent.is_usable()))
    }

    fn place_in(&self, mut lent: Lent, place: OwnedSemaphorePermit, guest: Option<OwnedSemaphorePermit>) -> Lent {
        if !lent.reserved {
            lent.lanes = Arc::downgrade(&self.shared);
        }
        (lent.place, lent.guest) = (Some(place), guest);
        lent
    }
}

/// What the pool gives, or else the reserve.
async fn or_reserved(
    usual: impl Future<Output = Result<Lent, sqlx::Error>>,
    reserved: impl Future<Output = Lent>,
) -> Result<Lent, sqlx::Error> {
    let mut reserved = pin!(reserved);
    let usual = tokio::select! {
        biased;
        usual = usual => usual,
        reserved = &mut reserved => return Ok(reserved),
    };
    match usual {
        // The pool's patience may be shorter than it takes to open a connection.
        Err(sqlx::Error::PoolTimedOut) => match tokio::time::timeout(GIVE_BACK, reserved).await {
            Ok(reserved) => Ok(reserved),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        },
        usual => usual,
    }
}

impl Shared {
    /// A connection of the pool's.
    async fn open(&self) -> Result<Lent, sqlx::Error> {
        let mut acquired = self.pool.acquire().await;
        if self.sessions.heard(&acquired, &self.pool) {
            acquired = self.pool.acquire().await;
        }
        acquired.map(Lent::new)
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
pub(crate) struct Lent {
    /// There until it is dropped.
    connection: Option<PoolConnection<Postgres>>,
    /// Given up when the connection is idle in the pool.
    place: Option<OwnedSemaphorePermit>,
    /// Given up at once, so that the same caller's next call finds it free.
    guest: Option<OwnedSemaphorePermit>,
    /// Whether it is of the reserve, to which it goes back at once; with the turn of its borrower there.
    reserved: bool,
    turn: Option<OwnedSemaphorePermit>,
    /// Of a transaction of the user's, given up like the place.
    seat: Option<Seat>,
    /// Where it belongs if it is the one that is kept from transactions.
    kept: Option<Arc<Kept>>,
    /// Where it may lie ready.
    lanes: Weak<Shared>,
    since: Instant,
    used: Instant,
    /// The runtime on which it was last used: on another one it may be dead, or never hear an answer.
    runtime: Option<Id>,
    /// Whether nobody knows if a transaction is open.
    torn: bool,
}

impl Lent {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            place: None,
            guest: None,
            reserved: false,
            turn: None,
            seat: None,
            kept: None,
            lanes: Weak::new(),
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

    /// Whether it can be used here and now, also if it was not used for a while.
    pub(crate) async fn answers(&mut self) -> bool {
        if self.is_usable() {
            return true;
        }
        let here = current_runtime();
        let stayed = self.runtime == here;
        let answer = async {
            match stayed {
                true => self.ping().await,
                false => hears(self).await,
            }
        };
        let answers = tokio::time::timeout(SIGN_OF_LIFE, answer)
            .await
            .is_ok_and(|answer| answer.is_ok());
        self.torn |= !answers;
        self.runtime = here;
        answers
    }

    /// Says that it belongs there.
    pub(crate) fn keep_for(&mut self, kept: Arc<Kept>) {
        self.kept = Some(kept);
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
        let Some(lanes) = self.lanes.upgrade() else {
            return;
        };
        if let Some(kept) = self.kept.take_if(|_| !lanes.pool.is_closed()) {
            let place = self.place.take();
            (self.used, self.runtime) = (Instant::now(), current_runtime());
            kept.put(self);
            Sweeper::start(&lanes);
            drop(place);
            return;
        }
        let can_spare = lanes.can_spare();
        let kept = if can_spare { KEPT } else { KEPT_FROM_OTHERS };
        if self.since.elapsed() >= kept || lanes.pool.is_closed() {
            return;
        }
        let (place, seat) = (self.place.take(), self.seat.take());
        self.guest = None;
        self.used = Instant::now();
        let runtime = current_runtime();
        // The place of another runtime is not for whoever is next on this one.
        let has_place = place.is_some() && self.runtime == runtime;
        self.runtime = runtime;
        lanes.locals.here(|local| match local.hand(self) {
            None => {}
            Some(lent) if has_place && can_spare => local.connections.push(lent),
            Some(lent) => local.spare.push(lent),
        });
        Sweeper::start(&lanes);
        // The next one finds what was left.
        drop((place, seat));
    }
}

const HELD: &str = "the connection is there until the value is dropped";

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(HELD)
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(HELD)
    }
}

impl Drop for Lent {
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
        let (place, turn, torn) = (self.place.take(), self.turn.take(), self.torn);
        let seat = self.seat.take();
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
            drop((place, turn, seat));
        });
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("torn", &self.torn).finish_non_exhaustive()
    }
}
