//! The way to the writer.
//!
//! A writer is a task. A task ends with its runtime, and stands still while nobody drives that runtime. So every runtime
//! that uses the store has a writer of its own, started by its first call, and no call waits for the task of another
//! runtime; between two writers of a process SQLite's own lock decides, as it does between processes. A database in memory
//! has one connection and so one writer, on a thread of its own.

use std::collections::HashMap;
use std::sync::Arc;

use queuert::__task::{Lock, LockGuard, spawn_on};
use queuert::{StateError, StateErrorKind};
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::connections::Open;
use crate::group::{Reply, Request};
use crate::own::Own;
use crate::thread;
use crate::transaction::Lendable;
use crate::writer::{Plan, Writer};

type Sender = mpsc::UnboundedSender<(Request, Instant)>;

/// What callers put their requests into. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    writers: Lock<Writers>,
    /// How to start another writer; `None` for a database in memory.
    plan: Option<Plan>,
}

#[derive(Debug, Default)]
struct Writers {
    by_runtime: HashMap<Id, Sender>,
    /// The one of a database in memory.
    lone: Option<Sender>,
    closed: bool,
}

impl Queue {
    /// A queue with a writer on the current runtime, which has what was opened already.
    pub(crate) fn start(plan: Plan, open: Open, own: Option<Own>, connection: Lendable) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let runtime = Handle::current();
        let writers = Writers {
            by_runtime: HashMap::from([(runtime.id(), sender)]),
            ..Writers::default()
        };
        spawn_on(
            &runtime,
            Writer::new(&plan, open, own, Some(connection), requests).run(),
        );
        Self::new(writers, Some(plan))
    }

    /// A queue in front of a database in memory.
    pub(crate) async fn start_in_memory(plan: &Plan, open: Open, connection: Lendable) -> Result<Self, StateError> {
        let message = "no thread could be started for the writer; open the database again";
        let failed = move |error| StateError::new(StateErrorKind::Transient, message).with_source(error);
        let (sender, requests) = mpsc::unbounded_channel();
        let writer = Writer::new(plan, open, None, Some(connection), requests);
        let (say_started, started) = oneshot::channel();
        let thread = thread::start("queuert-sqlite", move |runtime| match runtime {
            Ok(runtime) => {
                let _ = say_started.send(Ok(()));
                runtime.block_on(writer.run());
            }
            Err(error) => drop(say_started.send(Err(failed(error)))),
        });
        thread.map_err(failed)?;
        // The thread answers, unless it panics.
        started
            .await
            .unwrap_or_else(|_| Err(StateError::new(StateErrorKind::Transient, message)))?;
        let writers = Writers {
            lone: Some(sender),
            ..Writers::default()
        };
        Ok(Self::new(writers, None))
    }

    fn new(writers: Writers, plan: Option<Plan>) -> Self {
        Self(Arc::new(Shared {
            writers: Lock::new(writers),
            plan,
        }))
    }

    /// Puts a request into the queue and waits for its answer. Dropped meanwhile, the request still runs, entirely or
    /// not at all.
    pub(crate) async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, StateError> {
        let (reply, answer) = oneshot::channel();
        let sender = self.sender()?;
        let _ = sender.send((request(reply), Instant::now()));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The way to the writer of this runtime, which is started if it is not there. Fails if the store is closed.
    fn sender(&self) -> Result<Sender, StateError> {
        let runtime = Handle::try_current();
        let (sender, requests, open) = {
            let mut writers = self.0.lock();
            if let Some(lone) = &writers.lone {
                return Ok(lone.clone());
            }
            if writers.closed {
                return Err(closed());
            }
            // Not the writer of another runtime: nobody may drive that one any more, and the call would never end.
            let runtime = runtime.as_ref().map_err(|_| no_runtime())?;
            if let Some(sender) = writers.by_runtime.get(&runtime.id())
                && !sender.is_closed()
            {
                return Ok(sender.clone());
            }
            writers.by_runtime.retain(|_, sender| !sender.is_closed());
            let plan = self.0.plan.as_ref().ok_or_else(closed)?;
            let open = plan.core.connections.admit().ok_or_else(closed)?;
            let (sender, requests) = mpsc::unbounded_channel();
            writers.by_runtime.insert(runtime.id(), sender.clone());
            (sender, requests, open)
        };
        if let (Some(plan), Ok(runtime)) = (&self.0.plan, runtime) {
            // Not under the lock: a runtime that is ending drops the task right here.
            spawn_on(&runtime, Writer::new(plan, open, None, None, requests).run());
        }
        Ok(sender)
    }

    /// Whether other runtimes than this one use the store.
    pub(crate) fn is_shared(&self) -> bool {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let writers = self.0.lock();
        let mut others = writers.by_runtime.iter().filter(|(id, _)| Some(**id) != here);
        others.any(|(_, sender)| !sender.is_closed())
    }

    /// How this queue starts writers; `None` for a database in memory.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        self.0.plan.as_ref()
    }

    /// Lets the writers finish what waits, and close their connections. They do so whether or not the future is awaited,
    /// which ends when the writer of this runtime has.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + use<> {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let senders: Vec<(bool, Sender)> = {
            let mut writers = self.0.lock();
            writers.closed = true;
            let lone = writers.lone.take().map(|sender| (true, sender));
            let others = writers
                .by_runtime
                .drain()
                .map(|(id, sender)| (Some(id) == here, sender));
            others.chain(lone).collect()
        };
        let mut own_answers = Vec::new();
        for (own, sender) in senders {
            let (reply, answer) = oneshot::channel();
            let _ = sender.send((Request::Close(reply), Instant::now()));
            if own {
                own_answers.push(answer);
            }
        }
        async move {
            for answer in own_answers {
                // A writer that has gone with its runtime answers nothing.
                let _ = answer.await;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> LockGuard<'_, Writers> {
        self.writers.lock()
    }
}

/// The error of a call that is polled outside of any runtime.
pub(crate) fn no_runtime() -> StateError {
    StateError::new(
        StateErrorKind::Misconfigured,
        "the store was called outside of a Tokio runtime, where no task can write for it; call it inside one, for example in \
         `runtime.block_on(..)`",
    )
}

fn closed() -> StateError {
    StateError::new(
        StateErrorKind::Transient,
        "the store has been closed (open it again); or the runtime ended, or the operation panicked, while it was written: \
         then it has happened entirely or not at all",
    )
}
