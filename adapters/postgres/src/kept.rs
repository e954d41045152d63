//! The last connection of a pool, which transactions of the user's never get.
//!
//! A pool of two connections or more that the library has opened itself gives transactions all but one, so that renewals,
//! ends of attempts and announcements never wait for a transaction. A limit of the role or of the server may be lower than
//! that of the pool, so counting is not enough: as soon as there is a second transaction, one open connection is set aside
//! here, before the transaction gets its own. It goes back to the pool when no transaction has a connection any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert::__task::Lock;
use sqlx::PgPool;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::lanes::Lent;

/// How long a statement of the library's own may have the connection before the others look for one beside the pool.
pub(crate) const HELD_UP: Duration = Duration::from_millis(250);

/// How long a transaction waits for the one that sets the connection aside, whose future may not be polled.
pub(crate) const FILLING: Duration = Duration::from_millis(250);

/// What transactions share, and what they leave to the library.
#[derive(Debug)]
pub(crate) struct Kept {
    /// One for each connection that transactions may have.
    seats: Arc<Semaphore>,
    size: usize,
    /// How many transactions have a connection.
    seated: AtomicUsize,
    slot: Lock<Slot>,
    /// Has a permit while the connection is here.
    here: Semaphore,
    /// Of the transaction that sets the connection aside.
    pub(crate) filling: Mutex<()>,
}

#[derive(Debug)]
enum Slot {
    /// No connection is set aside.
    Vacant,
    /// A transaction is about to set one aside.
    Filling,
    Here(Lent),
    /// A statement of the library's own has it.
    InUse,
}

impl Kept {
    /// `None` for a pool of one, whose connection transactions and the library share.
    pub(crate) fn of(pool: &PgPool) -> Option<Arc<Self>> {
        let size = pool.options().get_max_connections() as usize;
        (size >= 2).then(|| {
            Arc::new(Self {
                seats: Arc::new(Semaphore::new(size - 1)),
                size: size - 1,
                seated: AtomicUsize::new(0),
                slot: Lock::new(Slot::Vacant),
                here: Semaphore::new(0),
                filling: Mutex::default(),
            })
        })
    }

    /// Waits until a transaction may have another connection.
    pub(crate) async fn reserve_seat(&self) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let seat = Arc::clone(&self.seats).acquire_owned().await;
        seat.map_err(|_| sqlx::Error::PoolClosed)
    }

    /// The transaction with this permit has its connection.
    pub(crate) fn sit(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Seat {
        self.seated.fetch_add(1, Ordering::SeqCst);
        Seat {
            kept: Arc::clone(self),
            _permit: permit,
        }
    }

    /// Whether a transaction must set a connection aside before it takes its own: it is not the only one, and none is.
    pub(crate) fn is_missing(&self) -> bool {
        let crowded = self.size - self.seats.available_permits() >= 2;
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
    pub(crate) async fn take(self: &Arc<Self>) -> Lent {
        loop {
            match self.here.acquire().await {
                Ok(permit) => permit.forget(),
                // Never closed: this value has the semaphore.
                Err(_) => std::future::pending().await,
            }
            let found = {
                let mut slot = self.slot.lock();
                match std::mem::replace(&mut *slot, Slot::InUse) {
                    Slot::Here(lent) => Some(lent),
                    other => {
                        *slot = other;
                        None
                    }
                }
            };
            if let Some(mut lent) = found {
                lent.keep_for(Arc::clone(self));
                if lent.answers().await {
                    return lent;
                }
            }
        }
    }

    /// Puts the connection where the next statement finds it.
    pub(crate) fn put(&self, lent: Lent) {
        let before = std::mem::replace(&mut *self.slot.lock(), Slot::Here(lent));
        // There is at most one. A second would be the pool's again, and not dropped under the lock.
        match before {
            Slot::Here(second) => drop(second),
            _ => self.here.add_permits(1),
        }
    }

    /// The connection has gone back to the pool, or is lost.
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

    /// The connection, if no transaction has one any more and it was not used for so long.
    pub(crate) fn take_old(&self, ready: Duration, closed: bool) -> Option<Lent> {
        let mut slot = self.slot.lock();
        let unused = closed || self.seated.load(Ordering::SeqCst) == 0;
        let old = matches!(&*slot, Slot::Here(lent) if closed || lent.used().elapsed() >= ready);
        if !unused || !old {
            return None;
        }
        // Without a permit a statement is about to take it.
        self.here.try_acquire().ok()?.forget();
        match std::mem::replace(&mut *slot, Slot::Vacant) {
            Slot::Here(lent) => Some(lent),
            other => {
                *slot = other;
                None
            }
        }
    }
}

/// A connection that a transaction has, of those that transactions may have.
#[derive(Debug)]
pub(crate) struct Seat {
    kept: Arc<Kept>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.kept.seated.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to set a connection aside. Dropped, it is another transaction's.
#[derive(Debug)]
pub(crate) struct Filling(Option<Arc<Kept>>);

impl Filling {
    pub(crate) fn put(mut self, lent: Lent) {
        if let Some(kept) = self.0.take() {
            kept.put(lent);
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
