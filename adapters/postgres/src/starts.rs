//! Starts that come while another one is on its way, gathered into one statement.
//!
//! Many tasks of a process that start a chain each would take a connection, a statement and a commit each. Here the first
//! goes at once, on its own; those that come before it is done wait for it, and then share one statement. Who is alone
//! waits for nobody.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use queuert::adapter::{CreatedChain, NewChain};
use queuert::{StateError, StateErrorKind};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::create::Patience;
use crate::error::copy;
use crate::state::Inner;

/// The most chains of one call that waits for others; a larger one has little to gain from company.
const SMALL: usize = 100;

/// The most chains in one statement.
const BATCH: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Starts(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Start>,
    /// Whether somebody has the turn.
    taken: bool,
}

#[derive(Debug)]
struct Start {
    chains: Vec<NewChain>,
    reply: oneshot::Sender<Answer>,
}

/// What a start that has waited hears.
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
    /// With others.
    Later(oneshot::Receiver<Answer>),
}

impl Starts {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to start these chains, which have neither keys nor blockers. A future that waits and is dropped leaves nothing
/// behind, or all of its chains.
pub(crate) fn way(inner: &Arc<Inner>, chains: &[NewChain]) -> Way {
    if chains.len() > SMALL {
        return Way::Beside;
    }
    let mut line = inner.starts.lock();
    if !line.taken {
        line.taken = true;
        return Way::First(Turn {
            inner: Arc::clone(inner),
            passed_on: false,
        });
    }
    let (reply, answer) = oneshot::channel();
    line.waiting.push_back(Start {
        chains: chains.to_vec(),
        reply,
    });
    Way::Later(answer)
}

/// The right to start chains. Dropped, it goes to a task for those who wait.
pub(crate) struct Turn {
    inner: Arc<Inner>,
    passed_on: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.passed_on {
            return;
        }
        let mut line = self.inner.starts.lock();
        // Without a runtime there is nobody to go on; those who wait hear that they are on their own.
        let runtime = Handle::try_current();
        if runtime.is_err() {
            line.waiting.clear();
        }
        line.taken = !line.waiting.is_empty();
        if let (true, Ok(runtime)) = (line.taken, runtime) {
            let turn = Self {
                inner: Arc::clone(&self.inner),
                passed_on: false,
            };
            runtime.spawn(turn.serve());
        }
    }
}

impl Turn {
    /// Starts what waits until nothing does.
    async fn serve(mut self) {
        loop {
            // Those who were answered just now, and are about to start more, do so first.
            tokio::task::yield_now().await;
            let Some(batch) = self.next_batch() else {
                return;
            };
            self.run(batch).await;
        }
    }

    fn next_batch(&mut self) -> Option<Vec<Start>> {
        let mut line = self.inner.starts.lock();
        let mut batch = Vec::new();
        let mut size = 0;
        while let Some(start) = line.waiting.pop_front_if(|start| size + start.chains.len() <= BATCH) {
            if !start.reply.is_closed() {
                size += start.chains.len();
                batch.push(start);
            }
        }
        if batch.is_empty() {
            line.taken = false;
            self.passed_on = true;
            return None;
        }
        Some(batch)
    }

    async fn run(&self, batch: Vec<Start>) {
        let all: Vec<NewChain> = batch.iter().flat_map(|start| start.chains.iter().cloned()).collect();
        match self.inner.start_simply(&all, Patience::Short).await {
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
            // One of them is at fault, or has to wait for somebody's lock, and does so by itself.
            Ok(None) | Err(_) => {
                for start in batch {
                    let _ = start.reply.send(Answer::Alone);
                }
            }
        }
    }
}
