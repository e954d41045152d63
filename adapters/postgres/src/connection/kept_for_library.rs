//! The one connection of a pool that transactions of the user's never get.
//!
//! A pool of two connections or more that the library has opened itself gives transactions all but one connection, so that
//! renewals, ends of attempts and announcements never wait for a transaction. The limit of the role or of the server may be
//! lower than the limit of the pool, so a count is not enough: when a second transaction begins, it puts an open connection
//! here before it takes its own. The connection goes back to the pool when no transaction has a connection any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert::__task::Lock;
use sqlx::PgPool;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::connection::borrowed::Borrowed;

/// How long a statement of the library's own may have the connection before the others look for one beside the pool.
pub(crate) const HELD_UP: Duration = Duration::from_millis(250);

/// How long a transaction waits for the transaction that sets the connection aside: its caller may not poll that future.
pub(crate) const FILLING: Duration = Duration::from_millis(250);

/// The connection that is kept for the library, and the permits for those that transactions may have.
#[derive(Debug)]
pub(crate) struct KeptForLibrary {
    /// One permit for each connection that transactions may have.
    permits: Arc<Semaphore>,
    size: usize,
    /// How many transactions have a connection.
    transactions: AtomicUsize,
    slot: Lock<Slot>,
    /// Has a permit while the connection is here.
    here: Semaphore,
    /// Held by the transaction that sets the connection aside.
    pub(crate) filling: Mutex<()>,
}

#[derive(Debug)]
enum Slot {
    /// No connection is set aside.
    Vacant,
    /// A transaction is about to set one aside.
    Filling,
    Here(Borrowed),
    /// A statement of the library's own uses the connection.
    InUse,
}

impl KeptForLibrary {
    /// `None` for a pool of one, whose connection transactions and the library share.
    pub(crate) fn of(pool: &PgPool) -> Option<Arc<Self>> {
        let size = pool.options().get_max_connections() as usize;
        (size >= 2).then(|| {
            Arc::new(Self {
                permits: Arc::new(Semaphore::new(size - 1)),
                size: size - 1,
                transactions: AtomicUsize::new(0),
                slot: Lock::new(Slot::Vacant),
                here: Semaphore::new(0),
                filling: Mutex::default(),
            })
        })
    }

    /// Waits until a transaction may have another connection.
    pub(crate) async fn permit_transaction(&self) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| sqlx::Error::PoolClosed)
    }

    /// Counts the transaction with this permit, which has its connection now.
    pub(crate) fn admit(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> TransactionPermit {
        self.transactions.fetch_add(1, Ordering::SeqCst);
        TransactionPermit {
            kept: Arc::clone(self),
            _permit: permit,
        }
    }

    /// Whether a transaction must set a connection aside before it takes its own: other transactions have permits, and no
    /// connection is set aside.
    pub(crate) fn is_missing(&self) -> bool {
        let crowded = self.size - self.permits.available_permits() >= 2;
        crowded && matches!(*self.slot.lock(), Slot::Vacant | Slot::Filling)
    }

    /// The right to set a connection aside, unless another transaction has done so.
    pub(crate) fn begin_filling(self: &Arc<Self>) -> Option<Filling> {
        let mut slot = self.slot.lock();
        if !matches!(*slot, Slot::Vacant) {
            return None;
        }
        *slot = Slot::Filling;
        Some(Filling(Some(Arc::clone(self))))
    }

    /// The connection, once no other statement has it.
    pub(crate) async fn take(self: &Arc<Self>) -> Borrowed {
        loop {
            match self.here.acquire().await {
                Ok(permit) => permit.forget(),
                // Never closed: this value has the semaphore.
                Err(_) => std::future::pending().await,
            }
            let found = {
                let mut slot = self.slot.lock();
                match std::mem::replace(&mut *slot, Slot::InUse) {
                    Slot::Here(borrowed) => Some(borrowed),
                    other => {
                        *slot = other;
                        None
                    }
                }
            };
            if let Some(mut borrowed) = found {
                borrowed.keep_for(Arc::clone(self));
                if borrowed.answers().await {
                    return borrowed;
                }
            }
        }
    }

    /// Puts the connection where the next statement finds it.
    pub(crate) fn put(&self, borrowed: Borrowed) {
        let before = std::mem::replace(&mut *self.slot.lock(), Slot::Here(borrowed));
        // There is at most one connection. A second one goes back to the pool, and is not dropped under the lock.
        match before {
            Slot::Here(second) => drop(second),
            _ => self.here.add_permits(1),
        }
    }

    /// Takes note that the connection has gone back to the pool, or is lost.
    pub(crate) fn lost(&self) {
        let mut slot = self.slot.lock();
        if matches!(*slot, Slot::InUse | Slot::Filling) {
            *slot = Slot::Vacant;
        }
    }

    /// Whether a connection is set aside that no statement uses.
    pub(crate) fn is_here(&self) -> bool {
        matches!(*self.slot.lock(), Slot::Here(_))
    }

    /// The connection, if no transaction has one any more and no statement has used it for `ready`.
    pub(crate) fn take_old(&self, ready: Duration, closed: bool) -> Option<Borrowed> {
        let mut slot = self.slot.lock();
        let unused = closed || self.transactions.load(Ordering::SeqCst) == 0;
        let old = matches!(&*slot, Slot::Here(borrowed) if closed || borrowed.used().elapsed() >= ready);
        if !unused || !old {
            return None;
        }
        // If there is no permit, a statement is about to take the connection.
        self.here.try_acquire().ok()?.forget();
        match std::mem::replace(&mut *slot, Slot::Vacant) {
            Slot::Here(borrowed) => Some(borrowed),
            other => {
                *slot = other;
                None
            }
        }
    }
}

/// The permit of a transaction that has a connection.
#[derive(Debug)]
pub(crate) struct TransactionPermit {
    kept: Arc<KeptForLibrary>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for TransactionPermit {
    fn drop(&mut self) {
        self.kept.transactions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to set a connection aside. When it is dropped, another transaction may take it.
#[derive(Debug)]
pub(crate) struct Filling(Option<Arc<KeptForLibrary>>);

impl Filling {
    pub(crate) fn put(mut self, borrowed: Borrowed) {
        if let Some(kept) = self.0.take() {
            kept.put(borrowed);
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(kept) = self.0.take() {
            kept.lost();
        }
    }
}
