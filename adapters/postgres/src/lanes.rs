//! Connections that the library borrows from the pool for what it does by itself, a few at a time.
//!
//! A pool opens another connection whenever somebody asks and none is idle, and a connection that was given back is not
//! idle at once: a task asks the server for a sign of life first. So the loops of a few workers, each with one statement
//! after the other, would in time open all that the pool may have. Here a place is given up only when the connection is
//! idle in the pool, or lies ready for whoever has the place next, so there are never more open than there are places.
//!
//! Transactions of the user's leave their connections in the same way, for each other and for whoever waits for one: the
//! sign of life would be a round trip per transaction.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, PgPool, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::connect::FRESH;

/// How many statements of the library's own run at a time in a process: a claim, the ends of attempts, and one for what
/// comes now and then (renewals, sweeps, upkeep, a call of the client's). With one more to announce and one to listen,
/// that makes the five of `docs/postgres.md`.
pub(crate) const PLACES: usize = 3;

/// How long a connection may take to become idle, or to close, before it is dropped. The server may have fallen silent,
/// and the place is needed.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// How long a connection lies ready before the pool gets it back. The loops of a busy worker come again much sooner, and
/// spare themselves and the server the sign of life.
const READY: Duration = Duration::from_millis(50);

/// How long a connection is kept from the pool at most, which closes those that are too old.
const KEPT: Duration = Duration::from_secs(30);

/// The same where the pool has nothing else to give: others may wait there, of whom nothing is known here.
const KEPT_FROM_OTHERS: Duration = Duration::from_millis(100);

/// Places for connections of a pool. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: PgPool,
    places: Arc<Semaphore>,
    /// For the one call of the client's that may have a place at a time. It may wait long for somebody's lock, which
    /// must not bring the workers to a halt.
    guest: Arc<Semaphore>,
    ready: Mutex<Ready>,
}

/// Connections that lie ready, the last one on top. Those and the ones in use are never more than there are places: who
/// has a place takes one of these, and asks the pool only if there is none.
#[derive(Debug, Default)]
struct Ready {
    connections: Vec<Lent>,
    /// The same of those that have no place, left by transactions of the user's.
    spare: Vec<Lent>,
    /// Who has asked the pool, and takes what is left meanwhile.
    waiting: VecDeque<oneshot::Sender<Lent>>,
    /// Whether there is a task that gives back what is not used.
    swept: bool,
}

impl Lanes {
    pub(crate) fn new(pool: PgPool, places: usize) -> Self {
        let shared = Shared {
            pool,
            places: Arc::new(Semaphore::new(places)),
            guest: Arc::new(Semaphore::new(1)),
            ready: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// For the library's own loops, which take turns.
    pub(crate) async fn enter(&self) -> Result<Lent, sqlx::Error> {
        let place = self.place().await?;
        self.take(place, None).await
    }

    /// For calls of the client's outside of transactions. One at a time takes its turn like the loops; what is under way
    /// beside it is as good as a transaction of the user's, and gets what the pool can give.
    pub(crate) async fn visit(&self) -> Result<Lent, sqlx::Error> {
        match Arc::clone(&self.shared.guest).try_acquire_owned() {
            Ok(guest) => {
                let place = self.place().await?;
                self.take(place, Some(guest)).await
            }
            Err(_) => self.pass().await,
        }
    }

    /// For transactions of the user's, which wait for nothing but the pool.
    pub(crate) async fn pass(&self) -> Result<Lent, sqlx::Error> {
        let mut lent = self.acquire().await?;
        lent.lanes = Arc::downgrade(&self.shared);
        Ok(lent)
    }

    /// What somebody has left, or leaves before the pool has one.
    async fn acquire(&self) -> Result<Lent, sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let left = {
            let mut ready = self.shared.ready();
            // What is older is from a runtime that has ended.
            match ready.spare.pop().filter(|lent| lent.used.elapsed() < FRESH) {
                Some(lent) => return Ok(lent),
                // Whoever the pool opens one for waits for that one: a connection that is given up half made costs the
                // server a process.
                None if self.shared.can_spare() => None,
                None => Some(ready.wait()),
            }
        };
        let Some(left) = left else {
            return self.shared.pool.acquire().await.map(Lent::new);
        };
        tokio::select! {
            biased;
            Ok(lent) = left => Ok(lent),
            acquired = self.shared.pool.acquire() => acquired.map(Lent::new),
        }
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let patience = self.shared.pool.options().get_acquire_timeout();
        let place = tokio::time::timeout(patience, Arc::clone(&self.shared.places).acquire_owned()).await;
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
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let ready = self.shared.ready().connections.pop();
        let mut lent = match ready {
            Some(lent) if lent.used.elapsed() < FRESH => lent,
            // From a runtime that has ended, or there is none.
            _ => self.acquire().await?,
        };
        lent.lanes = Arc::downgrade(&self.shared);
        (lent.place, lent.guest) = (Some(place), guest);
        Ok(lent)
    }
}

impl Shared {
    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether others find something in the pool while this one is kept from it.
    fn can_spare(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }
}

impl Ready {
    /// Whoever came first is given what is left first.
    fn wait(&mut self) -> oneshot::Receiver<Lent> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.push_back(sender);
        receiver
    }

    /// Gives it to somebody who waits, or back.
    fn hand(&mut self, mut lent: Lent) -> Option<Lent> {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting.send(lent) {
                Ok(()) => return None,
                // The pool had one for him, or he has gone.
                Err(back) => lent = back,
            }
        }
        Some(lent)
    }
}

/// The task that gives back what lies ready and is not used, until nothing is left. When its runtime ends before it, the
/// next connection that is left starts another one.
struct Sweeper {
    lanes: Arc<Shared>,
    done: bool,
}

impl Sweeper {
    /// Unless there is one already, who will find what was left before.
    fn start(lanes: &Arc<Shared>) {
        if std::mem::replace(&mut lanes.ready().swept, true) {
            return;
        }
        let sweeper = Self {
            lanes: Arc::clone(lanes),
            done: false,
        };
        // Not under the lock: a runtime that is ending drops the task right here, and that takes the lock.
        tokio::spawn(sweeper.run());
    }

    async fn run(mut self) {
        while !self.done {
            tokio::time::sleep(READY).await;
            drop(self.take_old());
        }
    }

    fn take_old(&mut self) -> Vec<Lent> {
        let lanes = Arc::clone(&self.lanes);
        let mut ready = lanes.ready();
        let mut old = Vec::new();
        for mut lent in std::mem::take(&mut ready.connections) {
            let is_old = lent.used.elapsed() >= READY || lanes.pool.is_closed();
            // With a place for the way back. If there is none, somebody has one for whom the connection lies ready.
            match Arc::clone(&lanes.places).try_acquire_owned() {
                Ok(place) if is_old => {
                    lent.place = Some(place);
                    old.push(lent);
                }
                _ => ready.connections.push(lent),
            }
        }
        for lent in std::mem::take(&mut ready.spare) {
            match lent.used.elapsed() >= READY || lanes.pool.is_closed() {
                true => old.push(lent),
                false => ready.spare.push(lent),
            }
        }
        // Under the lock: whoever leaves a connection from now on starts another task.
        self.done = ready.connections.is_empty() && ready.spare.is_empty();
        ready.swept = !self.done;
        old
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if !self.done {
            self.lanes.ready().swept = false;
        }
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
    /// Where it may lie ready.
    lanes: Weak<Shared>,
    since: Instant,
    used: Instant,
    /// Whether nobody knows if a transaction is open.
    torn: bool,
}

impl Lent {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            place: None,
            guest: None,
            lanes: Weak::new(),
            since: Instant::now(),
            used: Instant::now(),
            torn: false,
        }
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
        let can_spare = lanes.can_spare();
        let kept = if can_spare { KEPT } else { KEPT_FROM_OTHERS };
        if self.since.elapsed() >= kept || lanes.pool.is_closed() {
            return;
        }
        let place = self.place.take();
        self.guest = None;
        self.used = Instant::now();
        let mut ready = lanes.ready();
        match (place.is_some() && can_spare, ready.hand(self)) {
            (_, None) => {}
            (true, Some(lent)) => ready.connections.push(lent),
            (false, Some(lent)) => ready.spare.push(lent),
        }
        drop(ready);
        Sweeper::start(&lanes);
        // The next one finds what was left.
        drop(place);
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
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let (place, torn) = (self.place.take(), self.torn);
        // Without a runtime there is nobody to talk to the server, and no pool that could be used.
        let Ok(runtime) = Handle::try_current() else {
            drop(connection.return_to_pool());
            return;
        };
        runtime.spawn(async move {
            let back = async {
                match torn {
                    true => drop(connection.close().await),
                    false => connection.return_to_pool().await,
                }
            };
            // What comes of it does not matter: a connection that is not idle now is closed.
            let _ = tokio::time::timeout(GIVE_BACK, back).await;
            drop(place);
        });
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("torn", &self.torn).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sqlx::postgres::PgPoolOptions;
    use tokio::runtime::Builder;

    use super::*;

    /// Leaves a connection when it is dropped.
    struct Leaver(Arc<Shared>);

    impl Drop for Leaver {
        fn drop(&mut self) {
            Sweeper::start(&self.0);
        }
    }

    #[test]
    fn a_runtime_ends_while_a_connection_is_left() {
        let (ended, hears) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("there are threads");
            let lanes = runtime.block_on(async {
                let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/nowhere");
                Lanes::new(pool.expect("the URL is one"), PLACES)
            });
            let leaver = Leaver(Arc::clone(&lanes.shared));
            runtime.spawn(async move {
                std::future::pending::<()>().await;
                drop(leaver);
            });
            drop(runtime);
            let swept = lanes.shared.ready().swept;
            ended.send(swept).expect("the test waits");
        });
        let swept = hears.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
        assert!(!swept, "the next connection that is left starts another task");
    }
}
