//! Operations that share a transaction: what they are, how they run together, and who is told how it went.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use queuert::__task::Lock;
use queuert::adapter::{BoxFuture, NewChain, RenewLease, Renewal, Settled, Settlement};
use queuert::{JobId, StateError};
use tokio::sync::oneshot;

use crate::core::Core;
use crate::create::{self, Created};
use crate::db::Db;
use crate::transaction::Offer;
use crate::{claim, settle};

/// What waits in the queue.
pub(crate) enum Request {
    Create(Vec<NewChain>, Reply<Created>),
    Settle(Vec<Settlement>, Reply<Vec<Settled>>),
    /// Without a reply it has been answered before: the leases are extended as soon as that is possible.
    Renew(Vec<RenewLease>, Option<Reply<Vec<Renewal>>>),
    Other(Box<dyn Operation>),
    /// One whose commit does not count as news.
    Quiet(Box<dyn Operation>),
    /// With how long the transaction waits for its caller to come for it.
    Begin(Duration, Reply<Offer>),
    Close(oneshot::Sender<()>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StateError>>;

/// An operation that can be run again if the transaction that it shared failed.
pub(crate) trait Operation: Send {
    fn run<'a>(&'a mut self, db: &'a mut Db<'_>) -> BoxFuture<'a, Result<(), StateError>>;
    /// Gives the result of the last run to whoever waits.
    fn answer(self: Box<Self>);
    /// Gives an error to whoever waits.
    fn fail(self: Box<Self>, error: StateError);
    /// Whether nobody waits any more.
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
    F: for<'a> Fn(&'a mut Db<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send,
{
    fn run<'a>(&'a mut self, db: &'a mut Db<'_>) -> BoxFuture<'a, Result<(), StateError>> {
        let work = (self.work)(db);
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
    /// Whether it may share a transaction.
    pub(crate) fn groups(&self) -> bool {
        !matches!(self, Self::Begin(..) | Self::Close(_))
    }

    /// Whether other processes should look when it has been committed.
    pub(crate) fn is_news(&self) -> bool {
        !matches!(self, Self::Quiet(_))
    }

    /// Whether nobody waits for it any more. It has not run, and need not: a claim, for one, would take jobs for nobody.
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
}

impl Request {
    /// Says of leases to extend that the store is locked: nobody can take their jobs meanwhile. They are still extended when
    /// the lock is gone, which the caller does not wait for.
    pub(crate) fn put_off(&mut self) {
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
pub(crate) struct PutOff(Lock<Vec<RenewLease>>);

impl PutOff {
    /// Adds renewals, which replace those of the same jobs.
    pub(crate) fn add(&self, renewals: Vec<RenewLease>) {
        let mut put_off = self.0.lock();
        put_off.retain(|earlier| renewals.iter().all(|renewal| renewal.job != earlier.job));
        put_off.extend(renewals);
    }

    pub(crate) fn all(&self) -> Vec<RenewLease> {
        self.0.lock().clone()
    }

    pub(crate) fn take(&self) -> Vec<RenewLease> {
        std::mem::take(&mut *self.0.lock())
    }

    /// These have been committed.
    pub(crate) fn committed(&self, renewals: &[RenewLease]) {
        let same = |one: &RenewLease, other: &RenewLease| one.job == other.job && one.fence == other.fence;
        self.0
            .lock()
            .retain(|put_off| !renewals.iter().any(|renewal| same(renewal, put_off)));
    }
}

/// An operation that has run, and waits for the commit to be answered.
pub(crate) enum Answer {
    Create(Vec<NewChain>, Reply<Created>, Created),
    Settle(Vec<Settlement>, Reply<Vec<Settled>>, Vec<Settled>),
    Renew(Vec<RenewLease>, Option<Reply<Vec<Renewal>>>, Vec<Renewal>),
    Other(Box<dyn Operation>),
    Quiet(Box<dyn Operation>),
}

impl Answer {
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

/// Runs all operations of a group, moving each from `group` to `answers` when it has run. Concurrent starts share their
/// statements, and so do concurrent ends.
pub(crate) async fn run_all(
    core: &Core,
    db: &mut Db<'_>,
    group: &mut Vec<Request>,
    answers: &mut Vec<Answer>,
) -> Result<(), StateError> {
    run_creations(core, db, group, answers).await?;
    run_settlements(core, db, group, answers).await?;
    // Taken from the end, so that the first to come is the first to run.
    group.reverse();
    while let Some(request) = group.pop() {
        match request {
            Request::Create(chains, reply) => match create::create(db, core, &chains).await {
                Ok(created) => answers.push(Answer::Create(chains, reply, created)),
                Err(error) => {
                    group.push(Request::Create(chains, reply));
                    return Err(error);
                }
            },
            Request::Settle(settlements, reply) => match settle::settle(db, core, &settlements).await {
                Ok(settled) => answers.push(Answer::Settle(settlements, reply, settled)),
                Err(error) => {
                    group.push(Request::Settle(settlements, reply));
                    return Err(error);
                }
            },
            Request::Renew(renewals, reply) => match claim::renew(db, core, &renewals).await {
                Ok(renewed) => answers.push(Answer::Renew(renewals, reply, renewed)),
                Err(error) => {
                    group.push(Request::Renew(renewals, reply));
                    return Err(error);
                }
            },
            Request::Other(mut operation) => match operation.run(db).await {
                Ok(()) => answers.push(Answer::Other(operation)),
                Err(error) => {
                    group.push(Request::Other(operation));
                    return Err(error);
                }
            },
            Request::Quiet(mut operation) => match operation.run(db).await {
                Ok(()) => answers.push(Answer::Quiet(operation)),
                Err(error) => {
                    group.push(Request::Quiet(operation));
                    return Err(error);
                }
            },
            Request::Begin(..) | Request::Close(_) => {}
        }
    }
    Ok(())
}

/// Runs the creations of a group as one, if none of them is refused. A refused batch has written nothing.
async fn run_creations(
    core: &Core,
    db: &mut Db<'_>,
    group: &mut Vec<Request>,
    answers: &mut Vec<Answer>,
) -> Result<(), StateError> {
    let mut all: Vec<NewChain> = Vec::new();
    let mut several = 0;
    for request in group.iter() {
        if let Request::Create(chains, _) = request {
            all.extend_from_slice(chains);
            several += 1;
        }
    }
    if several < 2 {
        return Ok(());
    }
    let Ok(mut created) = create::create(db, core, &all).await? else {
        return Ok(());
    };
    for request in std::mem::take(group) {
        match request {
            Request::Create(chains, reply) => {
                let rest = created.split_off(chains.len());
                let own = std::mem::replace(&mut created, rest);
                answers.push(Answer::Create(chains, reply, Ok(own)));
            }
            other => group.push(other),
        }
    }
    Ok(())
}

/// Runs the ends of a group as one, if no job is named twice.
async fn run_settlements(
    core: &Core,
    db: &mut Db<'_>,
    group: &mut Vec<Request>,
    answers: &mut Vec<Answer>,
) -> Result<(), StateError> {
    let mut all: Vec<Settlement> = Vec::new();
    let mut several = 0;
    for request in group.iter() {
        if let Request::Settle(settlements, _) = request {
            all.extend_from_slice(settlements);
            several += 1;
        }
    }
    let mut jobs: HashSet<JobId> = HashSet::new();
    if several < 2 || !all.iter().all(|settlement| jobs.insert(settlement.job)) {
        return Ok(());
    }
    let mut settled = settle::settle(db, core, &all).await?;
    for request in std::mem::take(group) {
        match request {
            Request::Settle(settlements, reply) => {
                let rest = settled.split_off(settlements.len());
                let own = std::mem::replace(&mut settled, rest);
                answers.push(Answer::Settle(settlements, reply, own));
            }
            other => group.push(other),
        }
    }
    Ok(())
}
