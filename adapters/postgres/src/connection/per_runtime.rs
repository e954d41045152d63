//! The share of each runtime in the budget: permits, connections that are kept ready, and the task that gives them back to the
//! pool.
//!
//! A runtime may stand still: one that is kept between calls of `block_on`, or whose thread is blocked. The calls that are under
//! way on it keep their permits for that time. So runtimes share no permits, and connections that a runtime has kept ready and
//! does not give back to the pool are given back by the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Semaphore, oneshot};

use crate::connection::borrowed::Borrowed;
use crate::connection::budget::{Shared, Use};
use crate::connection::reserve::Reserve;

/// How long a connection is kept ready before the pool gets it back. The loops of a busy worker need one again much sooner,
/// and save themselves and the server the sign of life.
const READY: Duration = Duration::from_millis(50);

/// After how long other runtimes give back a connection that a runtime has kept ready: its own task for this was not polled.
const ABANDONED: Duration = Duration::from_secs(1);

/// The runtime that polls the caller, if there is one.
pub(crate) fn current_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// The share of every runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// How many statements of the library may run at a time.
    pub(crate) statements: usize,
    /// Whether the reserve has a connection for renewals.
    pub(crate) renewals: bool,
}

/// The shares of all runtimes.
#[derive(Debug)]
pub(crate) struct PerRuntime {
    share: Share,
    by_runtime: Lock<HashMap<Option<Id>, RuntimeShare>>,
}

/// The share of one runtime.
#[derive(Debug)]
pub(crate) struct RuntimeShare {
    permits: Arc<Permits>,
    /// Connections that are kept ready, the last one on top. Together with the ones in use they are never more than there are
    /// permits: a caller with a permit takes one of these, and asks the pool only if there is none.
    pub(crate) ready: Vec<Borrowed>,
    /// Connections without a permit, kept ready by transactions of the user's.
    pub(crate) from_transactions: Vec<Borrowed>,
    /// Callers that have asked the pool, and take a connection that is released meanwhile.
    waiting: VecDeque<oneshot::Sender<Borrowed>>,
    /// Whether there is a task that gives unused connections back.
    has_idle_task: bool,
}

/// The permits for which callers wait.
#[derive(Debug)]
pub(crate) struct Permits {
    /// For statements of the library.
    pub(crate) statements: Arc<Semaphore>,
    /// For the one call of the client's that may have a permit at a time. It may wait long for a lock of another transaction,
    /// which must not bring the workers to a halt.
    pub(crate) client: Arc<Semaphore>,
    pub(crate) reserve: Reserve,
}

impl PerRuntime {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            share,
            by_runtime: Lock::default(),
        }
    }

    /// Does something with what the caller's runtime has. Nothing that makes a task: that goes for dropping a connection.
    pub(crate) fn here<T>(&self, act: impl FnOnce(&mut RuntimeShare) -> T) -> T {
        let runtime = current_runtime();
        let mut per_runtime = self.by_runtime.lock();
        let mut unused = Vec::new();
        if !per_runtime.contains_key(&runtime) {
            // Some programs have a runtime for every call.
            unused.extend(per_runtime.extract_if(|_, share_of_runtime| share_of_runtime.is_unused(self.share)));
        }
        let share_of_runtime = per_runtime
            .entry(runtime)
            .or_insert_with(|| RuntimeShare::new(self.share));
        let result = act(share_of_runtime);
        drop(per_runtime);
        // Not under the lock: the reserve is a pool, which closes.
        drop(unused);
        result
    }

    pub(crate) fn permits(&self) -> Arc<Permits> {
        self.here(|share_of_runtime| Arc::clone(&share_of_runtime.permits))
    }

    /// Of all runtimes.
    pub(crate) fn all_permits(&self) -> Vec<Arc<Permits>> {
        let per_runtime = self.by_runtime.lock();
        per_runtime
            .values()
            .map(|share_of_runtime| Arc::clone(&share_of_runtime.permits))
            .collect()
    }

    /// The connection that another runtime has not used for the longest time. For a caller that finds none in the pool: the
    /// other runtime may never give it back.
    pub(crate) fn take_from_others(&self) -> Option<Borrowed> {
        let runtime = current_runtime();
        let mut per_runtime = self.by_runtime.lock();
        let others = per_runtime.iter_mut().filter(|(id, _)| **id != runtime);
        let mut lists: Vec<&mut Vec<Borrowed>> = others
            .flat_map(|(_, share_of_runtime)| [&mut share_of_runtime.ready, &mut share_of_runtime.from_transactions])
            .filter(|list| !list.is_empty())
            .collect();
        // The first of a list was left first.
        lists.sort_by_key(|list| list.first().map(Borrowed::used));
        lists.first_mut().map(|list| list.remove(0))
    }

    fn lock(&self) -> LockGuard<'_, HashMap<Option<Id>, RuntimeShare>> {
        self.by_runtime.lock()
    }
}

impl RuntimeShare {
    fn new(share: Share) -> Self {
        Self {
            permits: Arc::new(Permits {
                statements: Arc::new(Semaphore::new(share.statements)),
                client: Arc::new(Semaphore::new(1)),
                reserve: Reserve::new(1, share.renewals),
            }),
            ready: Vec::new(),
            from_transactions: Vec::new(),
            waiting: VecDeque::new(),
            has_idle_task: false,
        }
    }

    fn is_unused(&self, share: Share) -> bool {
        self.is_empty()
            && !self.has_idle_task
            && self.waiting.iter().all(oneshot::Sender::is_closed)
            && Arc::strong_count(&self.permits) == 1
            && self.permits.statements.available_permits() == share.statements
            && self.permits.client.available_permits() == 1
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.from_transactions.is_empty()
    }

    /// The connection that was released last, and rather one whose session has the settings that are needed.
    pub(super) fn take_released(&mut self, purpose: Use) -> Option<Borrowed> {
        let wants_caller_settings = purpose == Use::Transaction;
        let fitting = |borrowed: &Borrowed| borrowed.has_caller_settings() == wants_caller_settings;
        match self.from_transactions.iter().rposition(fitting) {
            Some(place) => Some(self.from_transactions.remove(place)),
            None => self.from_transactions.pop(),
        }
    }

    /// Waits for a connection that is released. The caller that came first gets the first one.
    pub(crate) fn wait(&mut self) -> oneshot::Receiver<Borrowed> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.push_back(sender);
        receiver
    }

    /// Hands a connection to a caller that waits, or returns it.
    pub(crate) fn hand(&mut self, mut borrowed: Borrowed) -> Option<Borrowed> {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting.send(borrowed) {
                Ok(()) => return None,
                // The pool had one for this caller, or its future was dropped.
                Err(back) => borrowed = back,
            }
        }
        Some(borrowed)
    }

    /// Connections that this runtime has kept ready and not used since.
    fn take_idle(&mut self, closed: bool, old: &mut Vec<Borrowed>) {
        for mut borrowed in std::mem::take(&mut self.ready) {
            let is_old = borrowed.used().elapsed() >= READY || closed;
            // With a permit for the way back. If there is none, its holder is about to take the connection.
            match Arc::clone(&self.permits.statements).try_acquire_owned() {
                Ok(permit) if is_old => {
                    borrowed.give_permit(permit);
                    old.push(borrowed);
                }
                _ => self.ready.push(borrowed),
            }
        }
        old.extend(
            self.from_transactions
                .extract_if(.., |borrowed| borrowed.used().elapsed() >= READY || closed),
        );
    }

    /// Connections that another runtime than the caller's has kept ready, without a permit: it may have none to give.
    fn take_abandoned(&mut self, closed: bool, old: &mut Vec<Borrowed>) {
        for list in [&mut self.ready, &mut self.from_transactions] {
            old.extend(list.extract_if(.., |borrowed| borrowed.used().elapsed() >= ABANDONED || closed));
        }
    }
}

/// The task of a runtime that gives unused connections back to the pool, those of other runtimes too, until none is left.
/// When its runtime ends before it, the next connection that is released starts another task.
pub(crate) struct IdleTask {
    budget: Arc<Shared>,
    runtime: Option<Id>,
    done: bool,
}

impl IdleTask {
    /// Starts the task, unless this runtime has one already.
    pub(crate) fn start(budget: &Arc<Shared>) {
        if budget
            .per_runtime
            .here(|share_of_runtime| std::mem::replace(&mut share_of_runtime.has_idle_task, true))
        {
            return;
        }
        let sweeper = Self {
            budget: Arc::clone(budget),
            runtime: current_runtime(),
            done: false,
        };
        // Not under the lock: a runtime that is ending drops the task right here, and that takes the lock.
        spawn(sweeper.run());
    }

    async fn run(mut self) {
        while !self.done {
            tokio::time::sleep(READY).await;
            drop(self.take_idle());
        }
    }

    fn take_idle(&mut self) -> Vec<Borrowed> {
        let closed = self.budget.is_closed();
        let budget = Arc::clone(&self.budget);
        let mut per_runtime = budget.per_runtime.lock();
        let mut old = Vec::new();
        for (runtime, share_of_runtime) in per_runtime.iter_mut() {
            if *runtime == self.runtime {
                share_of_runtime.take_idle(closed, &mut old)
            } else {
                share_of_runtime.take_abandoned(closed, &mut old)
            }
        }
        let kept = budget.kept.as_ref();
        old.extend(kept.and_then(|kept| kept.take_old(READY, closed)));
        self.done = per_runtime.values().all(RuntimeShare::is_empty) && !kept.is_some_and(|kept| kept.is_here());
        // Under the lock: the next release of a connection starts another task.
        if let Some(share_of_runtime) = per_runtime.get_mut(&self.runtime) {
            share_of_runtime.has_idle_task = !self.done;
        }
        old
    }
}

impl Drop for IdleTask {
    fn drop(&mut self) {
        if !self.done
            && let Some(share_of_runtime) = self.budget.per_runtime.lock().get_mut(&self.runtime)
        {
            share_of_runtime.has_idle_task = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sqlx::postgres::PgPoolOptions;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::connection::budget::Budget;
    use crate::connection::connect::Sessions;

    /// Leaves a connection when it is dropped.
    struct Leaver(Arc<Shared>);

    impl Drop for Leaver {
        fn drop(&mut self) {
            IdleTask::start(&self.0);
        }
    }

    fn budget(runtime: &Runtime) -> Budget {
        runtime.block_on(async {
            let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/nowhere");
            Budget::new(pool.expect("the URL is one"), Sessions::of_pooler(), None)
        })
    }

    #[test]
    fn a_runtime_ends_while_a_connection_is_left() {
        let (ended, hears) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("there are threads");
            let budget = budget(&runtime);
            let leaver = Leaver(Arc::clone(&budget.shared));
            runtime.spawn(async move {
                std::future::pending::<()>().await;
                drop(leaver);
            });
            drop(runtime);
            let has_idle_task = budget
                .shared
                .per_runtime
                .lock()
                .values()
                .any(|share_of_runtime| share_of_runtime.has_idle_task);
            ended.send(has_idle_task).expect("the test waits");
        });
        let has_idle_task = hears.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
        assert!(!has_idle_task, "the next connection that is left starts another task");
    }

    #[test]
    fn runtimes_that_have_ended_leave_nothing_behind() {
        let build = || Builder::new_current_thread().enable_all().build().expect("a runtime");
        let first = build();
        let budget = budget(&first);
        let per_runtime = &budget.shared.per_runtime;
        for _ in 0..10 {
            build().block_on(async { drop(per_runtime.permits()) });
        }
        let permits = first.block_on(async { per_runtime.permits() });
        build().block_on(async { drop(per_runtime.permits()) });
        assert_eq!(per_runtime.lock().len(), 2, "the first, in use, and the last");
        drop(permits);
    }
}
