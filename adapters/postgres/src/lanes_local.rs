//! What each runtime has of the lanes: places, connections that lie ready, and the task that gives them back.
//!
//! A runtime may stand still: one that is kept between calls of `block_on`, or whose thread is blocked. Whatever is under
//! way on it is kept for that time, its places with it. So nothing of this is shared by runtimes, and connections that a
//! runtime has left and does not give back to the pool are given back by the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Semaphore, oneshot};

use crate::lanes::{Lent, Shared};
use crate::reserve::Reserve;

/// How long a connection lies ready before the pool gets it back. The loops of a busy worker come again much sooner, and
/// spare themselves and the server the sign of life.
const READY: Duration = Duration::from_millis(50);

/// After how long other runtimes give back what a runtime has left: it has had a task for this, which nobody has polled.
const ABANDONED: Duration = Duration::from_secs(1);

/// The runtime that polls the caller, if there is one.
pub(crate) fn current_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// How much every runtime has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) places: usize,
    /// Whether the reserve has a connection for renewals.
    pub(crate) renewals: bool,
}

/// By runtime.
#[derive(Debug)]
pub(crate) struct Locals {
    share: Share,
    by_runtime: Lock<HashMap<Option<Id>, Local>>,
}

/// What one runtime has.
#[derive(Debug)]
pub(crate) struct Local {
    gates: Arc<Gates>,
    /// Connections that lie ready, the last one on top. Those and the ones in use are never more than there are places:
    /// who has a place takes one of these, and asks the pool only if there is none.
    pub(crate) connections: Vec<Lent>,
    /// The same of those that have no place, left by transactions of the user's.
    pub(crate) spare: Vec<Lent>,
    /// Who has asked the pool, and takes what is left meanwhile.
    waiting: VecDeque<oneshot::Sender<Lent>>,
    /// Whether there is a task that gives back what is not used.
    swept: bool,
}

/// What callers wait for.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) places: Arc<Semaphore>,
    /// For the one call of the client's that may have a place at a time. It may wait long for somebody's lock, which
    /// must not bring the workers to a halt.
    pub(crate) guest: Arc<Semaphore>,
    pub(crate) reserve: Reserve,
}

impl Locals {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            share,
            by_runtime: Lock::default(),
        }
    }

    /// Does something with what the caller's runtime has. Nothing that makes a task: that goes for dropping a connection.
    pub(crate) fn here<T>(&self, act: impl FnOnce(&mut Local) -> T) -> T {
        let runtime = current_runtime();
        let mut locals = self.by_runtime.lock();
        let mut unused = Vec::new();
        if !locals.contains_key(&runtime) {
            // Some programs have a runtime for every call.
            unused.extend(locals.extract_if(|_, local| local.is_unused(self.share)));
        }
        let local = locals.entry(runtime).or_insert_with(|| Local::new(self.share));
        let result = act(local);
        drop(locals);
        // Not under the lock: the reserve is a pool, which closes.
        drop(unused);
        result
    }

    pub(crate) fn gates(&self) -> Arc<Gates> {
        self.here(|local| Arc::clone(&local.gates))
    }

    /// Of all runtimes.
    pub(crate) fn all_gates(&self) -> Vec<Arc<Gates>> {
        let locals = self.by_runtime.lock();
        locals.values().map(|local| Arc::clone(&local.gates)).collect()
    }

    /// What another runtime has not used for the longest time. For a caller who finds nothing in the pool: whether the
    /// other runtime gives it back, nobody knows.
    pub(crate) fn take_from_others(&self) -> Option<Lent> {
        let runtime = current_runtime();
        let mut locals = self.by_runtime.lock();
        let others = locals.iter_mut().filter(|(id, _)| **id != runtime);
        let mut lists: Vec<&mut Vec<Lent>> = others
            .flat_map(|(_, local)| [&mut local.connections, &mut local.spare])
            .filter(|list| !list.is_empty())
            .collect();
        // The first of a list was left first.
        lists.sort_by_key(|list| list.first().map(Lent::used));
        lists.first_mut().map(|list| list.remove(0))
    }

    fn lock(&self) -> LockGuard<'_, HashMap<Option<Id>, Local>> {
        self.by_runtime.lock()
    }
}

impl Local {
    fn new(share: Share) -> Self {
        Self {
            gates: Arc::new(Gates {
                places: Arc::new(Semaphore::new(share.places)),
                guest: Arc::new(Semaphore::new(1)),
                reserve: Reserve::new(1, share.renewals),
            }),
            connections: Vec::new(),
            spare: Vec::new(),
            waiting: VecDeque::new(),
            swept: false,
        }
    }

    fn is_unused(&self, share: Share) -> bool {
        self.is_empty()
            && !self.swept
            && self.waiting.iter().all(oneshot::Sender::is_closed)
            && Arc::strong_count(&self.gates) == 1
            && self.gates.places.available_permits() == share.places
            && self.gates.guest.available_permits() == 1
    }

    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.spare.is_empty()
    }

    /// Whoever came first is given what is left first.
    pub(crate) fn wait(&mut self) -> oneshot::Receiver<Lent> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.push_back(sender);
        receiver
    }

    /// Gives it to somebody who waits, or back.
    pub(crate) fn hand(&mut self, mut lent: Lent) -> Option<Lent> {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting.send(lent) {
                Ok(()) => return None,
                // The pool had one for him, or he has gone.
                Err(back) => lent = back,
            }
        }
        Some(lent)
    }

    /// What this runtime has left and not used since.
    fn take_old(&mut self, closed: bool, old: &mut Vec<Lent>) {
        for mut lent in std::mem::take(&mut self.connections) {
            let is_old = lent.used().elapsed() >= READY || closed;
            // With a place for the way back. If there is none, somebody has one for whom the connection lies ready.
            match Arc::clone(&self.gates.places).try_acquire_owned() {
                Ok(place) if is_old => {
                    lent.put_in(place);
                    old.push(lent);
                }
                _ => self.connections.push(lent),
            }
        }
        old.extend(
            self.spare
                .extract_if(.., |lent| lent.used().elapsed() >= READY || closed),
        );
    }

    /// What another runtime than the caller's has left. Without a place: it may have none to give.
    fn take_abandoned(&mut self, closed: bool, old: &mut Vec<Lent>) {
        for list in [&mut self.connections, &mut self.spare] {
            old.extend(list.extract_if(.., |lent| lent.used().elapsed() >= ABANDONED || closed));
        }
    }
}

/// The task of a runtime that gives back what lies ready and is not used, until nothing is left, also by other runtimes.
/// When its runtime ends before it, the next connection that is left starts another one.
pub(crate) struct Sweeper {
    lanes: Arc<Shared>,
    runtime: Option<Id>,
    done: bool,
}

impl Sweeper {
    /// Unless this runtime has one already, who will find what was left before.
    pub(crate) fn start(lanes: &Arc<Shared>) {
        if lanes.locals.here(|local| std::mem::replace(&mut local.swept, true)) {
            return;
        }
        let sweeper = Self {
            lanes: Arc::clone(lanes),
            runtime: current_runtime(),
            done: false,
        };
        // Not under the lock: a runtime that is ending drops the task right here, and that takes the lock.
        spawn(sweeper.run());
    }

    async fn run(mut self) {
        while !self.done {
            tokio::time::sleep(READY).await;
            drop(self.take_old());
        }
    }

    fn take_old(&mut self) -> Vec<Lent> {
        let closed = self.lanes.is_closed();
        let lanes = Arc::clone(&self.lanes);
        let mut locals = lanes.locals.lock();
        let mut old = Vec::new();
        for (runtime, local) in locals.iter_mut() {
            match *runtime == self.runtime {
                true => local.take_old(closed, &mut old),
                false => local.take_abandoned(closed, &mut old),
            }
        }
        let kept = lanes.kept.as_ref();
        old.extend(kept.and_then(|kept| kept.take_old(READY, closed)));
        self.done = locals.values().all(Local::is_empty) && !kept.is_some_and(|kept| kept.is_here());
        // Under the lock: whoever leaves a connection from now on starts another task.
        if let Some(local) = locals.get_mut(&self.runtime) {
            local.swept = !self.done;
        }
        old
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if !self.done
            && let Some(local) = self.lanes.locals.lock().get_mut(&self.runtime)
        {
            local.swept = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sqlx::postgres::PgPoolOptions;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::connect::Sessions;
    use crate::lanes::Lanes;

    /// Leaves a connection when it is dropped.
    struct Leaver(Arc<Shared>);

    impl Drop for Leaver {
        fn drop(&mut self) {
            Sweeper::start(&self.0);
        }
    }

    fn lanes(runtime: &Runtime) -> Lanes {
        runtime.block_on(async {
            let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/nowhere");
            Lanes::new(pool.expect("the URL is one"), Sessions::of_pooler(), None)
        })
    }

    #[test]
    fn a_runtime_ends_while_a_connection_is_left() {
        let (ended, hears) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("there are threads");
            let lanes = lanes(&runtime);
            let leaver = Leaver(Arc::clone(&lanes.shared));
            runtime.spawn(async move {
                std::future::pending::<()>().await;
                drop(leaver);
            });
            drop(runtime);
            let swept = lanes.shared.locals.lock().values().any(|local| local.swept);
            ended.send(swept).expect("the test waits");
        });
        let swept = hears.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
        assert!(!swept, "the next connection that is left starts another task");
    }

    #[test]
    fn runtimes_that_have_ended_leave_nothing_behind() {
        let build = || Builder::new_current_thread().enable_all().build().expect("a runtime");
        let first = build();
        let lanes = lanes(&first);
        let locals = &lanes.shared.locals;
        for _ in 0..10 {
            build().block_on(async { drop(locals.gates()) });
        }
        let gates = first.block_on(async { locals.gates() });
        build().block_on(async { drop(locals.gates()) });
        assert_eq!(locals.lock().len(), 2, "the first, in use, and the last");
        drop(gates);
    }
}
