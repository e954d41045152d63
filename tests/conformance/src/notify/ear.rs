//! A subscriber and an announcer, in few words.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{Demand, Notice, NotifyAdapter, Subscription, Topic, Wake};
use queuert::{ChainId, JobId};

use crate::fixture::NotifyFixture;

/// Longer than any notice takes.
const SOON: Duration = Duration::from_secs(10);

/// A participant of the fixture's network.
pub(super) struct Participant {
    pub(super) adapter: Arc<dyn NotifyAdapter>,
    patience: Duration,
}

/// A subscription that a case watches.
pub(super) struct Ear {
    subscription: Subscription,
    patience: Duration,
}

impl Participant {
    pub(super) async fn join<F: NotifyFixture>(fixture: &F) -> Self {
        Self {
            adapter: fixture.connect().await,
            patience: fixture.patience(),
        }
    }

    pub(super) async fn listen(&self, topic: Topic) -> Ear {
        Ear {
            subscription: self.adapter.subscribe(topic).await.expect("subscribing works"),
            patience: self.patience,
        }
    }

    /// Listens for jobs of these types with room for many.
    pub(super) async fn jobs(&self, types: &[&'static str]) -> Ear {
        self.jobs_with(types, &Demand::new(100)).await
    }

    pub(super) async fn jobs_with(&self, types: &[&'static str], demand: &Demand) -> Ear {
        let topic = Topic::Jobs {
            types: types.iter().map(|name| (*name).into()).collect(),
            demand: demand.clone(),
        };
        self.listen(topic).await
    }

    pub(super) async fn chain(&self, chain: ChainId) -> Ear {
        self.listen(Topic::Chain(chain)).await
    }

    pub(super) async fn announce(&self, notices: &[Notice]) {
        self.adapter.announce(notices).await.expect("announcing works");
    }

    pub(super) async fn announce_jobs(&self, type_name: &'static str, count: usize) {
        self.announce(&[jobs(type_name, count)]).await;
    }
}

impl Ear {
    /// The next wake-up, which must come.
    pub(super) async fn next(&mut self) -> Wake {
        let wake = tokio::time::timeout(SOON, self.subscription.recv()).await;
        wake.expect("a wake-up comes").expect("the adapter is there")
    }

    /// The next wake-up if one comes in time.
    pub(super) async fn maybe(&mut self) -> Option<Wake> {
        tokio::time::timeout(self.patience, self.subscription.recv())
            .await
            .ok()?
    }

    /// This notice must come next.
    pub(super) async fn hears(&mut self, notice: Notice) {
        assert_eq!(self.next().await, Wake::Notice(notice));
    }

    /// A notice of jobs of this type must come next, whatever number it was split or merged into.
    pub(super) async fn hears_jobs(&mut self, expected: &str) -> usize {
        match self.next().await {
            Wake::Notice(Notice::JobsAvailable { type_name, count }) => {
                assert_eq!(type_name.as_str(), expected);
                count
            }
            other => panic!("jobs of `{expected}` were announced, {other:?} came"),
        }
    }

    pub(super) async fn hears_nothing(&mut self) {
        assert_eq!(self.maybe().await, None, "nothing of this concerns the subscriber");
    }
}

pub(super) fn jobs(type_name: &'static str, count: usize) -> Notice {
    Notice::JobsAvailable {
        type_name: type_name.into(),
        count,
    }
}

pub(super) fn ended(chain: ChainId) -> Notice {
    Notice::ChainEnded(chain)
}

pub(super) fn lost(job: JobId) -> Notice {
    Notice::LeaseLost(job)
}
