//! Starts that come while another one is on its way, gathered into one statement.
//!
//! Many tasks of a process that start a chain each would take a connection, a statement and a commit each. Here the first
//! goes at once, inside its caller's own future. A start that comes before the first is done makes a task, which waits for
//! the first and then sends everything that has come meanwhile in one statement. A start that is alone waits for nothing.
//!
//! No start depends on the future of another caller: the task gives the first a moment only, because its caller may have
//! polled it once and kept it. Each runtime has a line of its own, because a runtime that nobody drives polls no task.

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

/// The most chains of one call that waits for others; a larger one has little to gain from company.
const SMALL: usize = 100;

/// The most chains in one statement.
const BATCH: usize = 1_000;

/// The most bytes of inputs in one statement, unless it is for one call. Large inputs gain nothing from company, and a message
/// that is too large for the server would fail all of them.
const BYTES: usize = 4 << 20;

/// How long the others wait for the first. A statement that takes longer runs beside theirs.
const FIRST: Duration = Duration::from_millis(50);

/// The lines of the runtimes on which starts are on their way.
#[derive(Debug, Default)]
pub(crate) struct Starts(Lock<Lines>);

#[derive(Debug, Default)]
struct Lines {
    by_runtime: HashMap<Id, Line>,
    last_turn: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// The start that is under way in its caller's future.
    first: Option<First>,
    waiting: VecDeque<Start>,
    /// Whether a task sends what waits.
    served: bool,
}

#[derive(Debug)]
struct First {
    turn: u64,
    /// For the task.
    done: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Start {
    chains: Vec<NewChain>,
    reply: oneshot::Sender<Answer>,
}

impl Start {
    /// How large its inputs are.
    fn bytes(&self) -> usize {
        self.chains.iter().map(|chain| chain.job.input.as_str().len()).sum()
    }
}

/// The answer to a start that has waited.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It went along with others.
    Together(Result<Vec<CreatedChain>, StateError>),
    /// It has to go by itself. Nothing has been written.
    Alone,
}

/// How a start goes.
pub(crate) enum Way {
    /// At once; the turn is kept until it is done.
    First(Turn),
    /// At once, whatever others do.
    Beside,
    /// With others. Without an answer, it has to go by itself, and nothing has been written.
    Later(oneshot::Receiver<Answer>),
}

impl Starts {
    fn lock(&self) -> LockGuard<'_, Lines> {
        self.0.lock()
    }
}

/// How to start these chains, which have neither keys nor blockers. A future that waits and is dropped leaves nothing
/// behind, or all of its chains.
pub(crate) fn way(inner: &Arc<Inner>, chains: &[NewChain]) -> Way {
    // Without a runtime there is nothing that could send for others.
    let (false, Ok(runtime)) = (chains.len() > SMALL, Handle::try_current()) else {
        return Way::Beside;
    };
    let id = runtime.id();
    let (reply, answer) = oneshot::channel();
    let first_done = {
        let mut lines = inner.starts.lock();
        let turn = lines.last_turn + 1;
        let line = lines.by_runtime.entry(id).or_default();
        if line.first.is_none() && !line.served {
            line.first = Some(First { turn, done: None });
            lines.last_turn = turn;
            return Way::First(Turn {
                inner: Arc::clone(inner),
                runtime: id,
                number: turn,
            });
        }
        line.waiting.push_back(Start {
            chains: chains.to_vec(),
            reply,
        });
        if line.served {
            return Way::Later(answer);
        }
        line.served = true;
        let (done, first_done) = oneshot::channel();
        if let Some(first) = &mut line.first {
            first.done = Some(done);
        }
        first_done
    };
    let server = Server {
        inner: Arc::clone(inner),
        runtime: id,
        done: false,
    };
    // Not under the lock: a runtime that is ending drops the task right here, and that takes the lock.
    spawn_on(&runtime, server.serve(first_done));
    Way::Later(answer)
}

/// The first of a line. Dropped, it lets those go on that wait.
pub(crate) struct Turn {
    inner: Arc<Inner>,
    runtime: Id,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = self.inner.starts.lock();
        let Some(line) = lines.by_runtime.get_mut(&self.runtime) else {
            return;
        };
        // The others may have gone on without it, and another start may be the first by now.
        let first = line.first.take_if(|first| first.turn == self.number);
        if line.first.is_none() && !line.served {
            lines.by_runtime.remove(&self.runtime);
        }
        drop(lines);
        if let Some(done) = first.and_then(|first| first.done) {
            // The task may have gone with its runtime.
            let _ = done.send(());
        }
    }
}

/// The task that sends the starts that wait. Dropped with its runtime, it lets each of these starts be sent by its own caller.
struct Server {
    inner: Arc<Inner>,
    runtime: Id,
    done: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let left = self.inner.starts.lock().by_runtime.remove(&self.runtime);
        // Not under the lock: it wakes those that wait.
        drop(left);
    }
}

impl Server {
    /// Starts what waits until nothing does.
    async fn serve(mut self, first_done: oneshot::Receiver<()>) {
        let _ = tokio::time::timeout(FIRST, first_done).await;
        loop {
            // Callers that were answered just now, and are about to start more, do so first.
            tokio::task::yield_now().await;
            let Some(batch) = self.next_batch() else {
                return;
            };
            self.run(batch).await;
        }
    }

    fn next_batch(&mut self) -> Option<Batch> {
        let mut lines = self.inner.starts.lock();
        let line = lines.by_runtime.get_mut(&self.runtime)?;
        let mut batch = Vec::new();
        let (mut size, mut bytes) = (0, 0);
        let fits = |start: &Start, size: usize, bytes: usize| {
            size == 0 || (size + start.chains.len() <= BATCH && bytes + start.bytes() <= BYTES)
        };
        while let Some(start) = line.waiting.pop_front_if(|start| fits(start, size, bytes)) {
            if !start.reply.is_closed() {
                size += start.chains.len();
                bytes += start.bytes();
                batch.push(start);
            }
        }
        if batch.is_empty() {
            // A first that has not come back does not count any more: the next start is the first.
            lines.by_runtime.remove(&self.runtime);
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
                    let _ = start.reply.send(Answer::Together(Ok(own)));
                }
            }
            // It may have happened, so nobody may try again.
            Err(error) if error.kind() == StateErrorKind::Transient => {
                for start in batch {
                    let _ = start.reply.send(Answer::Together(Err(copy(&error))));
                }
            }
            // One of them is at fault, or has to wait for the lock of another transaction, and does so by itself.
            Ok(None) | Err(_) => {
                for start in batch {
                    let _ = start.reply.send(Answer::Alone);
                }
            }
        }
    }
}

/// Starts that are on their way in one statement.
struct Batch(Vec<Start>);

impl Drop for Batch {
    fn drop(&mut self) {
        // The runtime ends while the statement is under way: it may have happened.
        for start in self.0.drain(..) {
            let ended = StateError::new(
                StateErrorKind::Transient,
                "the runtime ended while the chains were started; they exist all, or none of them does: \
                 look with `get_chain`, or start them again with a deduplication key",
            );
            let _ = start.reply.send(Answer::Together(Err(ended)));
        }
    }
}
