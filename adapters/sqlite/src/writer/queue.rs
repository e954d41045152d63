//! The queues in front of the writers.
//!
//! A writer is a task. A task ends with its runtime, and makes no progress while the program does not drive that runtime. So
//! every runtime that uses the store has its own writer, started by the first call on it, and no call waits for a task of
//! another runtime. SQLite's lock orders the writers of one process, as it orders processes. A database in memory has one
//! connection and so one writer, on its own thread.

use std::collections::HashMap;
use std::sync::Arc;

use queuert::__task::{Lock, LockGuard, spawn_on};
use queuert::{StateError, StateErrorKind};
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::connection::connections::OpenConnection;
use crate::connection::lendable::Lendable;
use crate::runtime_thread;
use crate::writer::batch::{Reply, Request};
use crate::writer::thread::WriterThread;
use crate::writer::{Writer, WriterOptions};

type Sender = mpsc::UnboundedSender<(Request, Instant)>;

/// The queues of one store. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct WriterQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    writers: Lock<Writers>,
    /// For further writers; `None` for a database in memory.
    options: Option<WriterOptions>,
}

#[derive(Debug, Default)]
struct Writers {
    by_runtime: HashMap<Id, Sender>,
    /// The only queue of a database in memory.
    in_memory: Option<Sender>,
    closed: bool,
}

impl WriterQueue {
    /// Starts a writer on the current runtime, with what has been opened already.
    pub(crate) fn start(
        options: WriterOptions,
        open: OpenConnection,
        thread: Option<WriterThread>,
        connection: Lendable,
    ) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let runtime = Handle::current();
        let writers = Writers {
            by_runtime: HashMap::from([(runtime.id(), sender)]),
            ..Writers::default()
        };
        spawn_on(
            &runtime,
            Writer::new(&options, open, thread, Some(connection), requests).run(),
        );
        Self::new(writers, Some(options))
    }

    /// Starts the writer of a database in memory.
    pub(crate) async fn start_in_memory(
        options: &WriterOptions,
        open: OpenConnection,
        connection: Lendable,
    ) -> Result<Self, StateError> {
        let message = "no thread could be started for the writer; open the database again";
        let failed = move |error| StateError::new(StateErrorKind::Transient, message).with_source(error);
        let (sender, requests) = mpsc::unbounded_channel();
        let writer = Writer::new(options, open, None, Some(connection), requests);
        let (reply, started) = oneshot::channel();
        let thread = runtime_thread::start("queuert-sqlite", move |runtime| match runtime {
            Ok(runtime) => {
                let _ = reply.send(Ok(()));
                runtime.block_on(writer.run());
            }
            Err(error) => drop(reply.send(Err(failed(error)))),
        });
        thread.map_err(failed)?;
        // The thread answers, unless it panics.
        started
            .await
            .unwrap_or_else(|_| Err(StateError::new(StateErrorKind::Transient, message)))?;
        let writers = Writers {
            in_memory: Some(sender),
            ..Writers::default()
        };
        Ok(Self::new(writers, None))
    }

    fn new(writers: Writers, options: Option<WriterOptions>) -> Self {
        Self(Arc::new(Shared {
            writers: Lock::new(writers),
            options,
        }))
    }

    /// Puts a request into the queue and waits for its answer. If the future is dropped, the request still runs, entirely or
    /// not at all.
    pub(crate) async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, StateError> {
        let (reply, answer) = oneshot::channel();
        let sender = self.sender()?;
        let _ = sender.send((request(reply), Instant::now()));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The queue of the writer of this runtime, which is started if necessary. Fails if the store is closed.
    fn sender(&self) -> Result<Sender, StateError> {
        let runtime = Handle::try_current();
        let (sender, requests, open) = {
            let mut writers = self.0.lock();
            if let Some(sender) = &writers.in_memory {
                return Ok(sender.clone());
            }
            if writers.closed {
                return Err(closed());
            }
            // Not the writer of another runtime: that runtime may not be driven any more, and the call would never end.
            let runtime = runtime.as_ref().map_err(|_| no_runtime())?;
            if let Some(sender) = writers.by_runtime.get(&runtime.id())
                && !sender.is_closed()
            {
                return Ok(sender.clone());
            }
            writers.by_runtime.retain(|_, sender| !sender.is_closed());
            let options = self.0.options.as_ref().ok_or_else(closed)?;
            let open = options.store.connections.admit().ok_or_else(closed)?;
            let (sender, requests) = mpsc::unbounded_channel();
            writers.by_runtime.insert(runtime.id(), sender.clone());
            (sender, requests, open)
        };
        if let (Some(options), Ok(runtime)) = (&self.0.options, runtime) {
            // Not under the lock: a runtime that is ending drops the task here.
            spawn_on(&runtime, Writer::new(options, open, None, None, requests).run());
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

    /// The options of the writers; `None` for a database in memory.
    pub(crate) fn options(&self) -> Option<&WriterOptions> {
        self.0.options.as_ref()
    }

    /// Lets the writers finish the requests that wait and close their connections. They do so whether or not the future is
    /// awaited, which ends when the writer of this runtime is done.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + use<> {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let senders: Vec<(bool, Sender)> = {
            let mut writers = self.0.lock();
            writers.closed = true;
            let in_memory = writers.in_memory.take().map(|sender| (true, sender));
            let others = writers
                .by_runtime
                .drain()
                .map(|(id, sender)| (Some(id) == here, sender));
            others.chain(in_memory).collect()
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
                // A writer that has ended with its runtime does not answer.
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
