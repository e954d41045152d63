//! Gathers starts that come while another one is under way into one statement.
//!
//! Many tasks of a process that start a chain each would need a connection, a statement and a commit each. Here the first
//! start goes at once, inside its caller's own future. A start that comes before the first is done makes a task, which waits
//! for the first and then sends all starts that have come meanwhile in one statement. A start that is alone waits for nothing.
//!
//! No start depends on the future of another caller: the task waits for the first start for a moment only, because its caller
//! may have polled it once and kept it. Each runtime has a queue of its own, because a runtime that stands still polls no task.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn_on};
use queuert::adapter::{CreatedChain, NewChain};
use queuert::{StateError, StateErrorKind};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use crate::error::copy;
use crate::state::Inner;
use crate::verbs::create::LockWait;

/// The most chains of one call that waits for others; a larger call gains little from sharing a statement.
const LARGEST_CALL: usize = 100;

/// The most chains in one statement.
const LARGEST_BATCH: usize = 1_000;

/// The most bytes of inputs in one statement, unless it is for one call. Large inputs gain nothing from sharing a statement, and
/// a message that is too large for the server would fail all of them.
const MOST_BYTES: usize = 4 << 20;

/// How long the other starts wait for the first one. A statement that takes longer runs beside theirs.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The starts of all runtimes.
#[derive(Debug, Default)]
pub(crate) struct Coalescer(Lock<Queues>);

#[derive(Debug, Default)]
struct Queues {
    by_runtime: HashMap<Id, Queue>,
    last_turn: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// The start that is under way in its caller's future.
    first: Option<First>,
    waiting: VecDeque<Start>,
    /// Whether a task sends the waiting starts.
    has_task: bool,
}

#[derive(Debug)]
struct First {
    turn: u64,
    /// Tells the task that the start is done.
    done: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Start {
    chains: Vec<NewChain>,
    reply: oneshot::Sender<Answer>,
}

impl Start {
    /// How large its inputs are, in bytes.
    fn bytes(&self) -> usize {
        self.chains.iter().map(|chain| chain.job.input.as_str().len()).sum()
    }
}

/// The answer to a start that has waited.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It was sent together with others.
    Sent(Result<Vec<CreatedChain>, StateError>),
    /// Its caller has to send it. Nothing has been written.
    SendAlone,
}

/// How a start is sent.
pub(crate) enum Route {
    /// At once. The turn is kept until it is done.
    First(Turn),
    /// At once, whatever other starts do.
    Alone,
    /// Together with others, by the task. Without an answer its caller has to send it, and nothing has been written.
    Wait(oneshot::Receiver<Answer>),
}

impl Coalescer {
    fn lock(&self) -> LockGuard<'_, Queues> {
        self.0.lock()
    }
}

/// How to send the start of these chains, which have neither keys nor blockers. A future that waits and is dropped has started
/// none of its chains, or all of them.
pub(crate) fn route(inner: &Arc<Inner>, chains: &[NewChain]) -> Route {
    // Without a runtime there is no task that could send.
    let (false, Ok(runtime)) = (chains.len() > LARGEST_CALL, Handle::try_current()) else {
        return Route::Alone;
    };
    let id = runtime.id();
    let (reply, answer) = oneshot::channel();
    let first_done = {
        let mut queues = inner.coalescer.lock();
        let turn = queues.last_turn + 1;
        let queue = queues.by_runtime.entry(id).or_default();
        if queue.first.is_none() && !queue.has_task {
            queue.first = Some(First { turn, done: None });
            queues.last_turn = turn;
            return Route::First(Turn {
                inner: Arc::clone(inner),
                runtime: id,
                number: turn,
            });
        }
        queue.waiting.push_back(Start {
            chains: chains.to_vec(),
            reply,
        });
        if queue.has_task {
            return Route::Wait(answer);
        }
        queue.has_task = true;
        let (done, first_done) = oneshot::channel();
        if let Some(first) = &mut queue.first {
            first.done = Some(done);
        }
        first_done
    };
    let server = SendTask {
        inner: Arc::clone(inner),
        runtime: id,
        done: false,
    };
    // Not under the lock: a runtime that is ending drops the task right here, and that takes the lock.
    spawn_on(&runtime, server.run_until_empty(first_done));
    Route::Wait(answer)
}

/// The turn of the first start of a queue. Its drop lets the waiting starts go on.
pub(crate) struct Turn {
    inner: Arc<Inner>,
    runtime: Id,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.inner.coalescer.lock();
        let Some(queue) = queues.by_runtime.get_mut(&self.runtime) else {
            return;
        };
        // The task may have gone on without it, and another start may be the first by now.
        let first = queue.first.take_if(|first| first.turn == self.number);
        if queue.first.is_none() && !queue.has_task {
            queues.by_runtime.remove(&self.runtime);
        }
        drop(queues);
        if let Some(done) = first.and_then(|first| first.done) {
            // The task may have ended with its runtime.
            let _ = done.send(());
        }
    }
}

/// The task that sends the waiting starts. If it is dropped with its runtime, the caller of each of these starts sends it.
struct SendTask {
    inner: Arc<Inner>,
    runtime: Id,
    done: bool,
}

impl Drop for SendTask {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let left = self.inner.coalescer.lock().by_runtime.remove(&self.runtime);
        // Not under the lock: it wakes the callers.
        drop(left);
    }
}

impl SendTask {
    /// Coalescer what waits until nothing does.
    async fn run_until_empty(mut self, first_done: oneshot::Receiver<()>) {
        let _ = tokio::time::timeout(FIRST_WAIT, first_done).await;
        loop {
            // Callers that were answered just now, and are about to start more, go first.
            tokio::task::yield_now().await;
            let Some(batch) = self.next_batch() else {
                return;
            };
            self.run(batch).await;
        }
    }

    fn next_batch(&mut self) -> Option<Batch> {
        let mut queues = self.inner.coalescer.lock();
        let queue = queues.by_runtime.get_mut(&self.runtime)?;
        let mut batch = Vec::new();
        let (mut size, mut bytes) = (0, 0);
        let fits = |start: &Start, size: usize, bytes: usize| {
            size == 0 || (size + start.chains.len() <= LARGEST_BATCH && bytes + start.bytes() <= MOST_BYTES)
        };
        while let Some(start) = queue.waiting.pop_front_if(|start| fits(start, size, bytes)) {
            if !start.reply.is_closed() {
                size += start.chains.len();
                bytes += start.bytes();
                batch.push(start);
            }
        }
        if batch.is_empty() {
            // A first start that is not done does not count any more: the next start is the first.
            queues.by_runtime.remove(&self.runtime);
            self.done = true;
            return None;
        }
        Some(Batch(batch))
    }

    async fn run(&self, mut batch: Batch) {
        let all: Vec<NewChain> = batch.0.iter().flat_map(|start| start.chains.iter().cloned()).collect();
        let started = self.inner.start_simply(&all, LockWait::Short).await;
        let batch = std::mem::take(&mut batch.0);
        match started {
            Ok(Some(mut created)) => {
                for start in batch {
                    let rest = created.split_off(start.chains.len());
                    let own = std::mem::replace(&mut created, rest);
                    let _ = start.reply.send(Answer::Sent(Ok(own)));
                }
            }
            // The starts may have been written, so no caller may send its start again.
            Err(error) if error.kind() == StateErrorKind::Transient => {
                for start in batch {
                    let _ = start.reply.send(Answer::Sent(Err(copy(&error))));
                }
            }
            // One of them is at fault, or has to wait for a lock of another transaction. Each caller sends its own start.
            Ok(None) | Err(_) => {
                for start in batch {
                    let _ = start.reply.send(Answer::SendAlone);
                }
            }
        }
    }
}

/// Coalescer that are on their way in one statement.
struct Batch(Vec<Start>);

impl Drop for Batch {
    fn drop(&mut self) {
        // The runtime ends while the statement is under way: the starts may have been written.
        for start in self.0.drain(..) {
            let ended = StateError::new(
                StateErrorKind::Transient,
                "the runtime ended while the chains were started; they exist all, or none of them does: \
                 look with `get_chain`, or start them again with a deduplication key",
            );
            let _ = start.reply.send(Answer::Sent(Err(ended)));
        }
    }
}
