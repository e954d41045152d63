//! Waiting for a chain to end.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::Instant;

use super::{Client, patiently, report};
use crate::adapter::{BoxFuture, StateAdapter, Subscription, Topic, Wake};
use crate::chain::{ChainHandle, ChainRef};
use crate::error::Error;
use crate::error_text::Standing;
use crate::event::Event;
use crate::job::{JobRecord, JobStatus};
use crate::job_type::{Entry, JobType};
use crate::time::Timestamp;

const POLL_WITH_NOTIFY: Duration = Duration::from_secs(15);
const POLL_WITHOUT_NOTIFY: Duration = Duration::from_millis(500);

const LONGEST_POLL: Duration = Duration::from_secs(86_400);
const SUBSCRIBE_PATIENCE: Duration = Duration::from_secs(1);

const SHORTEST_POLL: Duration = Duration::from_millis(10);
/// How long the last read of the store may take after the deadline.
const LAST_LOOK: Duration = Duration::from_secs(1);
/// After this time a wait checks whether a worker processes the type of the job.
const UNATTENDED: Duration = Duration::from_secs(10);

impl<S: StateAdapter> Client<S> {
    /// Waits for a chain to end and returns its output. Holds no connection while it waits.
    ///
    /// # Errors
    ///
    /// [`Error::ChainDead`] and [`Error::ChainCancelled`] if the chain ends in that way; [`Error::ChainNotFound`], also
    /// if it is deleted meanwhile; [`Error::WaitTimeout`]; [`Error::Unreadable`]; [`Error::TypeMismatch`];
    /// [`Error::Undecodable`]; [`Error::State`] if the store fails permanently (the wait retries transient failures).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and nothing else.
    pub fn wait<H: ChainHandle>(&self, chain: H) -> Wait<'_, S, H::Entry> {
        Wait {
            client: self,
            chain: chain.chain_ref(),
            timeout: None,
            poll_interval: None,
        }
    }
}

/// A wait for the end of a chain. Await it.
#[must_use = "a wait does nothing until it is awaited"]
pub struct Wait<'c, S: StateAdapter, J> {
    client: &'c Client<S>,
    chain: ChainRef<J>,
    timeout: Option<Duration>,
    poll_interval: Option<Duration>,
}

impl<'c, S: StateAdapter, J: Entry> Wait<'c, S, J> {
    /// Ends the wait with an error after this time. The chain goes on. Default: no timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how often the wait reads the store without a wake-up; at least 10 milliseconds. Default: 500 milliseconds,
    /// or 15 seconds with a notify adapter.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval.max(SHORTEST_POLL));
        self
    }

    async fn run(self) -> Result<J::Output, Error> {
        let id = self.chain.id();
        // A deadline that no clock can show is none.
        let deadline = self
            .timeout
            .and_then(|timeout| Some((Instant::now().checked_add(timeout)?, timeout)));
        let poll = self.poll_interval.unwrap_or(if self.client.has_notify_adapter() {
            POLL_WITH_NOTIFY
        } else {
            POLL_WITHOUT_NOTIFY
        });
        let begun = Instant::now();
        let mut advised = false;
        // Listen first, then look: an end between the two is seen by one of them.
        let mut subscription = self.subscribe().await;
        loop {
            let overdue = deadline.is_some_and(|(deadline, _)| Instant::now() >= deadline);
            match self.look().await {
                Ok(Some(output)) => return Ok(output),
                Ok(None) => {}
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
            // The look after the deadline was the last one, so an end exactly at the deadline still counts.
            if let (true, Some((_, timeout))) = (overdue, deadline) {
                let latest = self.latest().await;
                return Err(Error::WaitTimeout {
                    chain: id,
                    timeout,
                    latest,
                });
            }
            if !advised && begun.elapsed() >= UNATTENDED {
                advised = true;
                self.advise().await;
            }
            let mut until = Instant::now() + poll.min(LONGEST_POLL);
            if let Some((deadline, _)) = deadline {
                until = until.min(deadline);
            }
            tokio::select! {
                biased;
                () = self.woken(&mut subscription) => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn subscribe(&self) -> Option<Subscription> {
        let topic = Topic::Chain(self.chain.id());
        // Without a subscription the wait goes on by polling, so it is not worth waiting for long.
        match patiently(SUBSCRIBE_PATIENCE, async {
            self.client.notify().subscribe(topic).await
        })
        .await
        {
            Ok(subscription) => Some(subscription),
            Err(error) => {
                self.client.hub().emit_with(|| Event::NotifyFailed {
                    operation: "subscribe",
                    error: report(&error),
                });
                None
            }
        }
    }

    /// Waits for a wake-up. Without a subscription, or when it has ended, listens again after a moment, which is a reason
    /// to look: an adapter that was slow or away costs the wait less than its poll.
    async fn woken(&self, subscription: &mut Option<Subscription>) {
        while let Some(live) = subscription {
            match live.recv().await {
                Some(Wake::Failed(error)) => self.client.hub().emit_with(|| Event::NotifyFailed {
                    operation: "listen",
                    error,
                }),
                Some(Wake::Notice(_) | Wake::Resync) => return,
                None => *subscription = None,
            }
        }
        while subscription.is_none() {
            tokio::time::sleep(SUBSCRIBE_PATIENCE).await;
            *subscription = self.subscribe().await;
        }
    }

    /// The job that the chain stands at, for a message.
    async fn latest(&self) -> Option<Box<JobRecord>> {
        let state = self.client.state();
        let chain = state.get_chains(None, &[self.chain.id()]).await.ok()?.pop()?;
        let job = state.get_jobs(None, &[chain.latest_job]).await.ok()?.pop()?;
        Some(Box::new(job))
    }

    /// Sends advice, once, if the chain has long been due and no worker takes its job: most often no worker runs, or none
    /// that processes the type.
    async fn advise(&self) {
        if !self.client.hub().is_listened_to() {
            return;
        }
        let Some(job) = self.latest().await else {
            return;
        };
        // The store's clock decides what is due; for a hint the machine's will do.
        if job.status == JobStatus::Pending && job.last_error.is_none() && job.scheduled_at <= Timestamp::wall_clock() {
            self.client.hub().emit_with(|| Event::Advice {
                advice: format!("chain {} is waited for{}", self.chain.id(), Standing(Some(&job))).into(),
            });
        }
    }

    async fn look(&self) -> Result<Option<J::Output>, Error> {
        let id = self.chain.id();
        let Some(chain) = self.client.state().get_chains(None, &[id]).await?.pop() else {
            return Err(Error::ChainNotFound(id));
        };
        if chain.type_name.as_str() != <J as JobType>::NAME {
            return Err(Error::TypeMismatch {
                id: id.first_job(),
                expected: J::NAME.into(),
                actual: chain.type_name,
            });
        }
        match chain.status {
            JobStatus::Completed => chain.decode_output::<J>(),
            JobStatus::Dead => Err(Error::ChainDead {
                chain: id,
                last_error: chain.last_error,
            }),
            JobStatus::Cancelled => Err(Error::ChainCancelled(id)),
            JobStatus::Blocked | JobStatus::Pending | JobStatus::Running => Ok(None),
        }
    }
}

impl<'c, S: StateAdapter, J: Entry> IntoFuture for Wait<'c, S, J> {
    type Output = Result<J::Output, Error>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let chain = self.chain.id();
        let Some(timeout) = self.timeout else {
            return Box::pin(self.run());
        };
        // A store that does not answer must not hold the caller past its deadline either.
        Box::pin(async move {
            let bounded = tokio::time::timeout(timeout.saturating_add(LAST_LOOK), self.run());
            bounded.await.unwrap_or(Err(Error::WaitTimeout {
                chain,
                timeout,
                latest: None,
            }))
        })
    }
}

impl<S: StateAdapter, J> fmt::Debug for Wait<'_, S, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("chain", &self.chain)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
