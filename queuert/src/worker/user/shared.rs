//! The state of one attempt that its processor, the worker, the renewer and the settler share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::__task::{Lock, LockGuard};
use crate::adapter::{AttemptStart, Authority, Continued, Outcome, RenewLease, Renewal, Settlement, StateAdapter};
use crate::chain::ChainRecord;
use crate::client::{Client, Transaction};
use crate::error::Error;
use crate::event::{Ages, AttemptInfo, Event};
use crate::id::Fence;
use crate::job::JobRecord;
use crate::settings::LeaseSettings;
use crate::time::Timestamp;
use crate::worker::user::abort::{AbortHandle, AbortReason};
use crate::worker::user::hooks::TransactionHooks;

/// The part of a set of workers that its attempts reach.
///
/// It leads to no queue of the workers: an attempt waits in such a queue, and would otherwise keep the queue, itself and
/// the store alive after the workers are dropped.
pub(crate) struct Environment<S: StateAdapter> {
    pub(crate) client: Client<S>,
    pub(crate) hooks: TransactionHooks<S>,
}

/// One attempt. Everything that concerns it holds an `Arc` of this.
pub(crate) struct SharedAttempt<S: StateAdapter> {
    pub(crate) environment: Arc<Environment<S>>,
    /// The job as it was claimed.
    pub(crate) record: JobRecord,
    /// The chains that the job waited for, in the declared order.
    pub(crate) blockers: Vec<ChainRecord>,
    pub(crate) info: Arc<AttemptInfo>,
    pub(crate) fence: Fence,
    pub(crate) lease: LeaseSettings,
    /// The number of attempts after which the job is dead, unless the job's record has its own.
    pub(crate) max_attempts: u32,
    /// The moment before the claim was sent.
    pub(crate) claimed_at: Instant,
    pub(crate) abort: AbortHandle,
    /// Written by the renewer, the listener for leases and the attempt itself.
    pub(crate) held: Lock<HeldLease>,
    /// Set when the processor has ended, or never began, and the end of the attempt is on its way to the store.
    pub(crate) settling: AtomicBool,
    /// Set when a transaction of the attempt is dropped, so that its writes are rolled back.
    pub(crate) abandoned: AtomicBool,
    /// Whether the attempt has a transaction open; see [`OpenTransaction`].
    pub(crate) transaction: AtomicU8,
}

/// Keeps an attempt from opening a second transaction while it has one: the second would wait for the locks of the first,
/// and nothing would ever end the wait.
pub(crate) struct OpenTransaction<S: StateAdapter>(Arc<SharedAttempt<S>>);

impl<S: StateAdapter> OpenTransaction<S> {
    const NONE: u8 = 0;
    const OPEN: u8 = 1;
    /// The completion of the attempt is written in it.
    const WRITTEN: u8 = 2;

    pub(crate) fn new(shared: &Arc<SharedAttempt<S>>) -> Result<Self, Error> {
        let (none, open) = (Self::NONE, Self::OPEN);
        let before = shared
            .transaction
            .compare_exchange(none, open, Ordering::SeqCst, Ordering::SeqCst);
        match before {
            Ok(_) => Ok(Self(Arc::clone(shared))),
            Err(before) => Err(Error::TransactionOpen {
                job: shared.record.id,
                written: before == Self::WRITTEN,
            }),
        }
    }

    /// Notes that the completion of the attempt has been written in the transaction.
    pub(crate) fn written(&self) {
        self.0.transaction.store(Self::WRITTEN, Ordering::SeqCst);
    }
}

impl<S: StateAdapter> Drop for OpenTransaction<S> {
    fn drop(&mut self) {
        self.0.transaction.store(Self::NONE, Ordering::SeqCst);
    }
}

/// A lease as this process knows it, by its own clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldLease {
    /// When the renewer renews it.
    pub(crate) renew_at: Instant,
    /// When it has surely expired.
    pub(crate) expires_at: Instant,
    /// A notice says that the lease is lost, or another transaction has the job locked: the renewer asks the store.
    pub(crate) doubted: bool,
}

impl<S: StateAdapter> SharedAttempt<S> {
    pub(crate) fn client(&self) -> &Client<S> {
        &self.environment.client
    }

    /// Whether the job is dead if this attempt fails.
    pub(crate) fn is_last_attempt(&self) -> bool {
        self.record.attempt >= self.record.max_attempts.unwrap_or(self.max_attempts)
    }

    pub(crate) fn held(&self) -> LockGuard<'_, HeldLease> {
        self.held.lock()
    }

    /// The write that ends this attempt in the given way.
    pub(crate) fn settlement(&self, outcome: Outcome) -> Settlement {
        Settlement {
            job: self.record.id,
            authority: Authority::Fence {
                fence: self.fence,
                worker: self.info.worker.clone(),
            },
            outcome,
        }
    }

    /// Extends the lease in a transaction that holds it and is about to commit, if its renewal is overdue: the transaction
    /// has kept the renewals from the store, and once its lock is gone the reaper of another process could be faster than
    /// the next renewal. Returns when the extended lease begins and the end that the store gave it.
    pub(crate) async fn extend_overdue(
        &self,
        transaction: &mut Transaction<S>,
    ) -> Result<Option<(Instant, Timestamp)>, Error> {
        let now = Instant::now();
        if now < self.held().renew_at {
            return Ok(None);
        }
        let renewal = RenewLease {
            job: self.record.id,
            fence: self.fence,
            lease: self.lease.duration,
        };
        let state = self.client().state();
        let renewed = state.renew_leases(Some(transaction.opened()), &[renewal]).await;
        let renewed = transaction.end_change(renewed.map_err(Error::State))?;
        Ok(match renewed.first() {
            Some(Renewal::Renewed(until)) => Some((now, *until)),
            _ => None,
        })
    }

    /// Notes that the store has extended the lease at this time, until this one by its own clock.
    pub(crate) fn extended(&self, (at, until): (Instant, Timestamp)) {
        *self.held() = HeldLease {
            renew_at: at + self.lease.renew_every,
            expires_at: at + self.lease.duration,
            doubted: false,
        };
        self.client().hub().emit_often(|| Event::LeaseRenewed {
            attempt: Arc::clone(&self.info),
            until,
        });
    }

    /// Fails early when the job is known to be lost. A stopping worker may still complete what it can. A lease that could
    /// not be renewed is over by the process's clock only: the store decides by the fence whether the job is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.abort.reason() {
            None | Some(AbortReason::Shutdown | AbortReason::Error) => Ok(()),
            Some(reason) => Err(Error::LeaseLost {
                job: self.record.id,
                reason,
            }),
        }
    }

    /// Fires the abort signal because the job is lost, and emits the event, once.
    pub(crate) fn lost(&self, reason: AbortReason) {
        if self.abort.abort(reason) {
            self.client().hub().emit_with(|| Event::LeaseLost {
                attempt: Arc::clone(&self.info),
                reason,
            });
        }
    }

    /// The attempt as an observability adapter sees it when it begins.
    pub(crate) fn start(&self) -> AttemptStart<'_> {
        AttemptStart::new(&self.info, &self.record, &self.blockers)
    }

    /// Fires the abort signal because the attempt ran too long, and emits the event.
    pub(crate) fn timed_out(&self, timeout: Duration) {
        self.abort.abort(AbortReason::TimedOut);
        self.client().hub().emit_with(|| Event::AttemptTimedOut {
            attempt: Arc::clone(&self.info),
            timeout,
        });
    }

    /// How long job and chain have existed. Not computed when no event would carry it.
    pub(crate) fn ages(&self) -> Ages {
        if !self.client().hub().is_listened_to() {
            return Ages::default();
        }
        Ages::at(&self.record, self.now())
    }

    /// The time by the store's clock until the claim, and by the process's clock since: never behind the store's.
    pub(crate) fn now(&self) -> Timestamp {
        self.info.started_at.saturating_add(self.claimed_at.elapsed())
    }

    /// This job, as the one that the next job of the chain continues.
    pub(crate) fn continued(&self) -> Continued<'_> {
        Continued::new(&self.info.job, self.info.trace_context.as_deref())
    }
}
