//! Hints within one process, and none at all.

use std::fmt;
use std::sync::Arc;

use crate::__task::{Lock, LockGuard};
use crate::adapter::{BoxFuture, Notice, NotifyAdapter, Subscriber, Subscribers, Subscription, Topic};
use crate::error::NotifyError;

/// Carries hints between the clients and workers of one process. Clones share their subscribers.
///
/// New jobs are handed out as wake-ups one by one: each subscriber in turn gets as many as it has demand for, until
/// all are spoken for. The end of a chain reaches the subscribers of that chain and costs the others nothing.
#[derive(Clone, Default)]
pub struct InProcessNotify {
    subscribers: Arc<Lock<Subscribers>>,
}

impl InProcessNotify {
    /// An adapter with no subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> LockGuard<'_, Subscribers> {
        self.subscribers.lock()
    }
}

impl NotifyAdapter for InProcessNotify {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async move {
            let mut subscribers = self.lock();
            for notice in notices {
                subscribers.tell(notice);
            }
            Ok(())
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(async move {
            let unsubscribe = |subscriber| Unsubscribe {
                adapter: self.clone(),
                subscriber,
            };
            let (_, subscription) = self.lock().add(topic, unsubscribe);
            Ok(subscription)
        })
    }
}

struct Unsubscribe {
    adapter: InProcessNotify,
    subscriber: Subscriber,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.adapter.lock().remove(&self.subscriber);
    }
}

impl fmt::Debug for InProcessNotify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subscribers = self.lock();
        f.debug_struct("InProcessNotify")
            .field("types", &subscribers.types().count())
            .field("chains", &subscribers.chains().count())
            .finish_non_exhaustive()
    }
}

/// Announces nothing, and its subscriptions never wake: workers find their jobs by polling.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNotify;

impl NotifyAdapter for NoNotify {
    fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn subscribe(&self, _: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        // The subscription keeps its own sender: without one it would report that the adapter has gone.
        let kept = Arc::new(Lock::new(None));
        let (sender, subscription) = Subscription::new(Arc::clone(&kept));
        *kept.lock() = Some(sender);
        Box::pin(std::future::ready(Ok(subscription)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::adapter::{Demand, Wake};
    use crate::id::JobId;

    fn id(number: u128) -> JobId {
        JobId::from_uuid(uuid::Uuid::from_u128(number))
    }

    fn available(count: usize) -> Notice {
        Notice::JobsAvailable {
            type_name: "task".into(),
            count,
        }
    }

    async fn workers(notify: &InProcessNotify, demands: &[usize]) -> Vec<(Demand, Subscription)> {
        let mut workers = Vec::new();
        for jobs in demands {
            let demand = Demand::new(*jobs);
            let topic = Topic::Jobs {
                types: vec!["other".into(), "task".into(), "task".into()],
                demand: demand.clone(),
            };
            workers.push((demand, notify.subscribe(topic).await.unwrap()));
        }
        workers
    }

    /// The wake-up that is there, if there is one.
    fn woken(subscription: &mut Subscription) -> Option<Wake> {
        match pin!(subscription.recv()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(wake) => Some(wake.expect("the adapter is there")),
            Poll::Pending => None,
        }
    }

    fn told(workers: &mut [(Demand, Subscription)]) -> Vec<usize> {
        let count = |(_, subscription): &mut (Demand, Subscription)| {
            let mut told = 0;
            while let Some(Wake::Notice(Notice::JobsAvailable { count, .. })) = woken(subscription) {
                told += count;
            }
            told
        };
        workers.iter_mut().map(count).collect()
    }

    #[tokio::test]
    async fn new_jobs_wake_as_many_workers_as_there_are_jobs() {
        let notify = InProcessNotify::new();
        let mut workers = workers(&notify, &[1, 0, 1, 1, 1]).await;
        notify.announce(&[available(2)]).await.unwrap();
        assert_eq!(told(&mut workers), [1, 0, 1, 0, 0]);
        // Those who were told have no demand left until they say so; the others are next.
        notify.announce(&[available(9)]).await.unwrap();
        assert_eq!(told(&mut workers), [0, 0, 0, 1, 1]);
        notify.announce(&[available(1)]).await.unwrap();
        assert_eq!(told(&mut workers), [0; 5]);
    }

    #[tokio::test]
    async fn jobs_are_offered_in_turns_up_to_the_demand() {
        let notify = InProcessNotify::new();
        let mut workers = workers(&notify, &[3, 3]).await;
        notify.announce(&[available(4)]).await.unwrap();
        assert_eq!(told(&mut workers), [3, 1]);
        workers[0].0.set(3);
        workers[1].0.set(3);
        notify.announce(&[available(1)]).await.unwrap();
        notify.announce(&[available(1)]).await.unwrap();
        assert_eq!(told(&mut workers), [1, 1]);
    }

    #[tokio::test]
    async fn the_end_of_a_chain_reaches_its_subscribers_only() {
        let notify = InProcessNotify::new();
        let mut others = Vec::new();
        for number in 0..5_000 {
            others.push(notify.subscribe(Topic::Chain(id(number).as_chain())).await.unwrap());
        }
        let ours = id(7_777).as_chain();
        let mut one = notify.subscribe(Topic::Chain(ours)).await.unwrap();
        let mut two = notify.subscribe(Topic::Chain(ours)).await.unwrap();
        let dropped = notify.subscribe(Topic::Chain(ours)).await.unwrap();
        drop(dropped);
        assert_eq!(notify.lock().chains().count(), 5_001);
        notify.announce(&[Notice::ChainEnded(ours)]).await.unwrap();
        let ended = Some(Wake::Notice(Notice::ChainEnded(ours)));
        assert_eq!(woken(&mut one), ended);
        assert_eq!(woken(&mut two), ended);
        assert!(others.iter_mut().all(|other| woken(other).is_none()));
    }

    #[tokio::test]
    async fn a_dropped_subscription_leaves_nothing_behind() {
        let notify = InProcessNotify::new();
        let workers = workers(&notify, &[1, 1]).await;
        let chain = notify.subscribe(Topic::Chain(id(1).as_chain())).await.unwrap();
        let mut leases = notify.subscribe(Topic::Leases).await.unwrap();
        notify.announce(&[Notice::LeaseLost(id(1))]).await.unwrap();
        assert_eq!(woken(&mut leases), Some(Wake::Notice(Notice::LeaseLost(id(1)))));
        drop((workers, chain, leases));
        assert!(notify.lock().is_empty());
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_to_look_again() {
        let notify = InProcessNotify::new();
        let mut leases = notify.subscribe(Topic::Leases).await.unwrap();
        for number in 0..1_000 {
            notify.announce(&[Notice::LeaseLost(id(number))]).await.unwrap();
        }
        assert_eq!(woken(&mut leases), Some(Wake::Resync));
    }

    #[tokio::test]
    async fn no_notify_never_wakes_and_never_ends() {
        let mut subscription = NoNotify.subscribe(Topic::Leases).await.unwrap();
        NoNotify.announce(&[Notice::LeaseLost(id(1))]).await.unwrap();
        assert_eq!(woken(&mut subscription), None);
    }
}
