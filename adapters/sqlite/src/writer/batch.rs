//! Requests to the writer, and how operations share a transaction.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use queuert::__task::Lock;
use queuert::adapter::{BoxFuture, NewChain, RenewLease, Renewal, Settled, Settlement};
use queuert::{JobId, StateError};
use tokio::sync::oneshot;

use crate::connection::Connection;
use crate::store::Store;
use crate::transaction::Offer;
use crate::verbs::create::{self, Created};
use crate::verbs::{lease, settle};

/// A request in the queue of the writer.
pub(crate) enum Request {
    Create(Vec<NewChain>, Reply<Created>),
    Settle(Vec<Settlement>, Reply<Vec<Settled>>),
    /// Without a reply, the caller has been answered before: the leases are extended as soon as possible.
    Renew(Vec<RenewLease>, Option<Reply<Vec<Renewal>>>),
    Other(Box<dyn Operation>),
    /// An operation whose commit other processes need not notice.
    Quiet(Box<dyn Operation>),
    /// The begin of a transaction, with the time within which the caller has to accept it.
    Begin(Duration, Reply<Offer>),
    Close(oneshot::Sender<()>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StateError>>;

/// An operation that can run again if the transaction that it shared has failed.
pub(crate) trait Operation: Send {
    fn run<'a>(&'a mut self, connection: &'a mut Connection<'_>) -> BoxFuture<'a, Result<(), StateError>>;
    /// Sends the result of the last run to the caller.
    fn answer(self: Box<Self>);
    /// Sends an error to the caller.
    fn fail(self: Box<Self>, error: StateError);
    /// Whether the caller has stopped waiting.
    fn is_abandoned(&self) -> bool;
}

/// An operation made from a function.
pub(crate) struct Task<T, F> {
    pub(crate) work: F,
    pub(crate) result: Option<T>,
    pub(crate) reply: Reply<T>,
}

impl<T, F> Operation for Task<T, F>
where
    T: Send,
    F: for<'a> Fn(&'a mut Connection<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send,
{
    fn run<'a>(&'a mut self, connection: &'a mut Connection<'_>) -> BoxFuture<'a, Result<(), StateError>> {
        let work = (self.work)(connection);
        Box::pin(async {
            self.result = Some(work.await?);
            Ok(())
        })
    }

    fn answer(self: Box<Self>) {
        if let Some(result) = self.result {
            let _ = self.reply.send(Ok(result));
        }
    }

    fn fail(self: Box<Self>, error: StateError) {
        let _ = self.reply.send(Err(error));
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

impl Request {
    /// Whether it may share a transaction with others.
    pub(crate) fn may_share(&self) -> bool {
        !matches!(self, Self::Begin(..) | Self::Close(_))
    }

    /// Whether other processes should notice its commit.
    pub(crate) fn is_news(&self) -> bool {
        !matches!(self, Self::Quiet(_))
    }

    /// Whether the caller has stopped waiting. The request has not run, and should not: a claim would take jobs that no
    /// worker runs.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Create(_, reply) => reply.is_closed(),
            Self::Settle(_, reply) => reply.is_closed(),
            Self::Renew(_, reply) => reply.as_ref().is_some_and(Reply::is_closed),
            Self::Other(operation) | Self::Quiet(operation) => operation.is_abandoned(),
            Self::Begin(_, reply) => reply.is_closed(),
            Self::Close(_) => false,
        }
    }

    pub(crate) fn fail(self, error: StateError) {
        match self {
            Self::Create(_, reply) => drop(reply.send(Err(error))),
            Self::Settle(_, reply) => drop(reply.send(Err(error))),
            Self::Renew(_, reply) => drop(reply.map(|reply| reply.send(Err(error)))),
            Self::Other(operation) | Self::Quiet(operation) => operation.fail(error),
            Self::Begin(_, reply) => drop(reply.send(Err(error))),
            Self::Close(_) => {}
        }
    }

    /// Answers a renewal with `Busy`, because another transaction has the lock, so that no reaper can take the jobs
    /// meanwhile. The leases are extended when the lock is free; the caller does not wait for that.
    pub(crate) fn postpone(&mut self) {
        if let Self::Renew(renewals, reply) = self
            && let Some(reply) = reply.take()
        {
            let _ = reply.send(Ok(vec![Renewal::Busy; renewals.len()]));
        }
    }
}

/// Leases to extend that were answered with [`Renewal::Busy`] while another transaction had the write lock. The next commit
/// of this handle extends them, before other processes find them expired.
#[derive(Debug, Default)]
pub(crate) struct PostponedRenewals(Lock<Vec<RenewLease>>);

impl PostponedRenewals {
    /// Adds renewals, which replace those of the same jobs.
    pub(crate) fn add(&self, renewals: Vec<RenewLease>) {
        let mut postponed = self.0.lock();
        postponed.retain(|earlier| renewals.iter().all(|renewal| renewal.job != earlier.job));
        postponed.extend(renewals);
    }

    /// The renewals, which stay postponed.
    pub(crate) fn all(&self) -> Vec<RenewLease> {
        self.0.lock().clone()
    }

    /// Takes the renewals out.
    pub(crate) fn take(&self) -> Vec<RenewLease> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Removes renewals that were committed.
    pub(crate) fn committed(&self, renewals: &[RenewLease]) {
        let same = |one: &RenewLease, other: &RenewLease| one.job == other.job && one.fence == other.fence;
        self.0
            .lock()
            .retain(|postponed| !renewals.iter().any(|renewal| same(renewal, postponed)));
    }
}

/// An operation that has run, and is answered after the commit.
pub(crate) enum Executed {
    Create(Vec<NewChain>, Reply<Created>, Created),
    Settle(Vec<Settlement>, Reply<Vec<Settled>>, Vec<Settled>),
    Renew(Vec<RenewLease>, Option<Reply<Vec<Renewal>>>, Vec<Renewal>),
    Other(Box<dyn Operation>),
    Quiet(Box<dyn Operation>),
}

impl Executed {
    pub(crate) fn send(self) {
        match self {
            Self::Create(_, reply, created) => drop(reply.send(Ok(created))),
            Self::Settle(_, reply, settled) => drop(reply.send(Ok(settled))),
            Self::Renew(_, reply, renewed) => drop(reply.map(|reply| reply.send(Ok(renewed)))),
            Self::Other(operation) | Self::Quiet(operation) => operation.answer(),
        }
    }

    pub(crate) fn into_request(self) -> Request {
        match self {
            Self::Create(chains, reply, _) => Request::Create(chains, reply),
            Self::Settle(settlements, reply, _) => Request::Settle(settlements, reply),
            Self::Renew(renewals, reply, _) => Request::Renew(renewals, reply),
            Self::Other(operation) => Request::Other(operation),
            Self::Quiet(operation) => Request::Quiet(operation),
        }
    }

    pub(crate) fn fail(self, error: StateError) {
        self.into_request().fail(error);
    }
}

/// Runs all operations of a batch, and moves each from `batch` to `executed` when it has run. Concurrent starts share their
/// statements, and so do concurrent settlements.
pub(crate) async fn run_all(
    store: &Store,
    connection: &mut Connection<'_>,
    batch: &mut Vec<Request>,
    executed: &mut Vec<Executed>,
) -> Result<(), StateError> {
    run_creations(store, connection, batch, executed).await?;
    run_settlements(store, connection, batch, executed).await?;
    // Taken from the end, so that they run in the order of their arrival.
    batch.reverse();
    while let Some(request) = batch.pop() {
        match request {
            Request::Create(chains, reply) => match create::create(connection, store, &chains).await {
                Ok(created) => executed.push(Executed::Create(chains, reply, created)),
                Err(error) => {
                    batch.push(Request::Create(chains, reply));
                    return Err(error);
                }
            },
            Request::Settle(settlements, reply) => match settle::settle(connection, store, &settlements).await {
                Ok(settled) => executed.push(Executed::Settle(settlements, reply, settled)),
                Err(error) => {
                    batch.push(Request::Settle(settlements, reply));
                    return Err(error);
                }
            },
            Request::Renew(renewals, reply) => match lease::renew(connection, store, &renewals).await {
                Ok(renewed) => executed.push(Executed::Renew(renewals, reply, renewed)),
                Err(error) => {
                    batch.push(Request::Renew(renewals, reply));
                    return Err(error);
                }
            },
            Request::Other(mut operation) => match operation.run(connection).await {
                Ok(()) => executed.push(Executed::Other(operation)),
                Err(error) => {
                    batch.push(Request::Other(operation));
                    return Err(error);
                }
            },
            Request::Quiet(mut operation) => match operation.run(connection).await {
                Ok(()) => executed.push(Executed::Quiet(operation)),
                Err(error) => {
                    batch.push(Request::Quiet(operation));
                    return Err(error);
                }
            },
            Request::Begin(..) | Request::Close(_) => {}
        }
    }
    Ok(())
}

/// Runs the creations of a batch as one, if none of them is refused. If one is, nothing has been written.
async fn run_creations(
    store: &Store,
    connection: &mut Connection<'_>,
    batch: &mut Vec<Request>,
    executed: &mut Vec<Executed>,
) -> Result<(), StateError> {
    let mut all: Vec<NewChain> = Vec::new();
    let mut several = 0;
    for request in batch.iter() {
        if let Request::Create(chains, _) = request {
            all.extend_from_slice(chains);
            several += 1;
        }
    }
    if several < 2 {
        return Ok(());
    }
    let Ok(mut created) = create::create(connection, store, &all).await? else {
        return Ok(());
    };
    for request in std::mem::take(batch) {
        match request {
            Request::Create(chains, reply) => {
                let rest = created.split_off(chains.len());
                let own = std::mem::replace(&mut created, rest);
                executed.push(Executed::Create(chains, reply, Ok(own)));
            }
            other => batch.push(other),
        }
    }
    Ok(())
}

/// Runs the settlements of a batch as one, if no job is settled twice.
async fn run_settlements(
    store: &Store,
    connection: &mut Connection<'_>,
    batch: &mut Vec<Request>,
    executed: &mut Vec<Executed>,
) -> Result<(), StateError> {
    let mut all: Vec<Settlement> = Vec::new();
    let mut several = 0;
    for request in batch.iter() {
        if let Request::Settle(settlements, _) = request {
            all.extend_from_slice(settlements);
            several += 1;
        }
    }
    let mut jobs: HashSet<JobId> = HashSet::new();
    if several < 2 || !all.iter().all(|settlement| jobs.insert(settlement.job)) {
        return Ok(());
    }
    let mut settled = settle::settle(connection, store, &all).await?;
    for request in std::mem::take(batch) {
        match request {
            Request::Settle(settlements, reply) => {
                let rest = settled.split_off(settlements.len());
                let own = std::mem::replace(&mut settled, rest);
                executed.push(Executed::Settle(settlements, reply, own));
            }
            other => batch.push(other),
        }
    }
    Ok(())
}
