//! The subscribers of one process: which of them is told of a notice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::notify::{Demand, Notice, NoticeSender, Subscription, Topic};
use crate::id::ChainId;
use crate::job::TypeName;

/// The subscriptions of one process to a [`NotifyAdapter`](super::NotifyAdapter), for adapters: keep them under a lock, add
/// and remove subscriptions, and [`tell`](Self::tell) them of notices.
///
/// New jobs are handed out one by one: each subscriber in turn gets as many as it has [`Demand`] for, until all are spoken
/// for. The end of a chain reaches the subscribers of that chain, and costs the others nothing.
#[derive(Debug, Default)]
pub struct Subscribers {
    last: u64,
    /// In the order in which they are asked next.
    jobs: HashMap<TypeName, VecDeque<JobSubscriber>>,
    chains: HashMap<ChainId, ChainSubscribers>,
    leases: BTreeMap<u64, NoticeSender>,
}

/// Names a subscription, for [`Subscribers::remove`].
#[derive(Debug)]
pub struct Subscriber {
    id: u64,
    topic: Topic,
}

#[derive(Debug)]
struct JobSubscriber {
    id: u64,
    demand: Demand,
    sender: NoticeSender,
}

#[derive(Debug, Default)]
struct ChainSubscribers {
    /// Whether the adapter has found the chain in the store: a chain that is missing after that was deleted, one that is
    /// missing before may not have been committed yet.
    seen: bool,
    senders: BTreeMap<u64, NoticeSender>,
}

impl Subscribers {
    /// No subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a subscription. `guard` makes the value that is dropped with the subscription: its `Drop` takes the lock and
    /// calls [`remove`](Self::remove). The sender is for what the adapter tells this subscriber alone.
    pub fn add<G: Send + Sync + 'static>(
        &mut self,
        topic: Topic,
        guard: impl FnOnce(Subscriber) -> G,
    ) -> (NoticeSender, Subscription) {
        self.last += 1;
        let id = self.last;
        let (sender, subscription) = Subscription::new(guard(Subscriber {
            id,
            topic: topic.clone(),
        }));
        match topic {
            Topic::Jobs { types, demand } => {
                for type_name in types {
                    let queue = self.jobs.entry(type_name).or_default();
                    // A type that is named twice is still one subscription.
                    if queue.back().is_none_or(|last| last.id != id) {
                        queue.push_back(JobSubscriber {
                            id,
                            demand: demand.clone(),
                            sender: sender.clone(),
                        });
                    }
                }
            }
            Topic::Chain(chain) => {
                let subscribers = self.chains.entry(chain).or_default();
                subscribers.senders.insert(id, sender.clone());
            }
            Topic::Leases => {
                self.leases.insert(id, sender.clone());
            }
        }
        (sender, subscription)
    }

    /// Removes a subscription.
    pub fn remove(&mut self, subscriber: &Subscriber) {
        let id = subscriber.id;
        match &subscriber.topic {
            Topic::Jobs { types, .. } => {
                for type_name in types {
                    if let Some(queue) = self.jobs.get_mut(type_name) {
                        queue.retain(|subscriber| subscriber.id != id);
                        if queue.is_empty() {
                            self.jobs.remove(type_name);
                        }
                    }
                }
            }
            Topic::Chain(chain) => {
                if let Some(subscribers) = self.chains.get_mut(chain) {
                    subscribers.senders.remove(&id);
                    if subscribers.senders.is_empty() {
                        self.chains.remove(chain);
                    }
                }
            }
            Topic::Leases => {
                self.leases.remove(&id);
            }
        }
    }

    /// Removes all subscriptions: their readers are told that the adapter has gone, and subscribe again.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.chains.clear();
        self.leases.clear();
    }

    /// Tells the subscribers of a notice, and returns the part of it that other processes should be told: jobs that a
    /// subscriber of this process will take are spoken for.
    pub fn tell(&mut self, notice: &Notice) -> Option<Notice> {
        match notice {
            Notice::JobsAvailable { type_name, count } => {
                let left = count - self.offer(type_name, *count);
                return (left > 0).then(|| Notice::JobsAvailable {
                    type_name: type_name.clone(),
                    count: left,
                });
            }
            Notice::ChainEnded(chain) => {
                let subscribers = self.chains.get(chain).into_iter();
                for sender in subscribers.flat_map(|found| found.senders.values()) {
                    sender.send(notice.clone());
                }
            }
            Notice::PausesChanged => {
                let subscribers = self.jobs.values().flatten();
                // A subscriber stands in the queue of each of its types.
                let each: BTreeMap<u64, &NoticeSender> = subscribers
                    .map(|subscriber| (subscriber.id, &subscriber.sender))
                    .collect();
                for sender in each.into_values() {
                    sender.send(notice.clone());
                }
            }
            Notice::LeaseLost(_) => {
                for sender in self.leases.values() {
                    sender.send(notice.clone());
                }
            }
        }
        Some(notice.clone())
    }

    /// Offers jobs to the subscribers of their type, each once around, and returns how many were taken.
    pub fn offer(&mut self, type_name: &TypeName, count: usize) -> usize {
        let Some(queue) = self.jobs.get_mut(type_name) else {
            return 0;
        };
        let mut left = count;
        for _ in 0..queue.len() {
            if left == 0 {
                break;
            }
            let Some(subscriber) = queue.pop_front() else {
                break;
            };
            let taken = subscriber.demand.take(left);
            if taken > 0 {
                left -= taken;
                subscriber.sender.send(Notice::JobsAvailable {
                    type_name: type_name.clone(),
                    count: taken,
                });
            }
            queue.push_back(subscriber);
        }
        count - left
    }

    /// For adapters that read the store to find out what has happened: tells the subscribers of a chain that it has ended.
    /// `open` is what the store says of the chain, `None` if it does not have it. A chain that was found before, and is
    /// missing now, has ended: it was deleted.
    pub fn found_chain(&mut self, chain: ChainId, open: Option<bool>) {
        let Some(subscribers) = self.chains.get_mut(&chain) else {
            return;
        };
        let ended = match open {
            Some(open) => {
                subscribers.seen = true;
                !open
            }
            None => subscribers.seen,
        };
        if ended {
            self.tell(&Notice::ChainEnded(chain));
        }
    }

    /// Tells all subscribers to look at the store.
    pub fn resync(&self) {
        self.senders().for_each(NoticeSender::resync);
    }

    /// Tells the subscribers that could take jobs now to look at the store.
    pub fn resync_idle(&self) {
        self.idle().for_each(|subscriber| subscriber.sender.resync());
    }

    /// Tells all subscribers that the adapter cannot hear for now, and why.
    pub fn fail(&self, error: &Arc<str>) {
        self.senders().for_each(|sender| sender.fail(Arc::clone(error)));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.chains.is_empty() && self.leases.is_empty()
    }

    /// Whether a subscriber runs jobs, of any type.
    pub fn has_workers(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether a subscriber could take a job now, of any type.
    pub fn has_idle_workers(&self) -> bool {
        self.idle().next().is_some()
    }

    /// Whether a subscriber runs jobs of the type.
    pub fn runs(&self, type_name: &TypeName) -> bool {
        self.jobs.contains_key(type_name)
    }

    /// The types of which subscribers run jobs.
    pub fn types(&self) -> impl Iterator<Item = &TypeName> {
        self.jobs.keys()
    }

    /// The chains whose ends subscribers wait for.
    pub fn chains(&self) -> impl Iterator<Item = ChainId> {
        self.chains.keys().copied()
    }

    /// Subscribers that could take jobs now, once for each of their types.
    fn idle(&self) -> impl Iterator<Item = &JobSubscriber> {
        let all = self.jobs.values().flatten();
        all.filter(|subscriber| subscriber.demand.get() > 0)
    }

    fn senders(&self) -> impl Iterator<Item = &NoticeSender> {
        let jobs = self.jobs.values().flatten().map(|subscriber| &subscriber.sender);
        let chains = self.chains.values().flat_map(|found| found.senders.values());
        jobs.chain(chains).chain(self.leases.values())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use uuid::Uuid;

    use super::super::notify::Wake;
    use super::*;

    fn chain(number: u128) -> ChainId {
        ChainId::from_uuid(Uuid::from_u128(number))
    }

    fn woken(subscription: &mut Subscription) -> Option<Wake> {
        match pin!(subscription.recv()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(wake) => Some(wake.expect("the subscribers are there")),
            Poll::Pending => None,
        }
    }

    #[test]
    fn other_processes_are_told_of_the_jobs_that_this_one_does_not_take() {
        let mut subscribers = Subscribers::new();
        let demand = Demand::new(2);
        let topic = Topic::Jobs {
            types: vec!["mail".into()],
            demand: demand.clone(),
        };
        let (_, _subscription) = subscribers.add(topic, drop);
        let jobs = |count| Notice::JobsAvailable {
            type_name: "mail".into(),
            count,
        };
        assert!(subscribers.has_workers() && subscribers.has_idle_workers());
        assert_eq!(subscribers.tell(&jobs(1)), None);
        assert_eq!(subscribers.tell(&jobs(3)), Some(jobs(2)));
        assert!(!subscribers.has_idle_workers());
        demand.set(1);
        assert_eq!(subscribers.offer(&"mail".into(), 5), 1);
        assert_eq!(subscribers.offer(&"page".into(), 5), 0);
        let ended = Notice::ChainEnded(chain(1));
        assert_eq!(
            subscribers.tell(&ended),
            Some(ended.clone()),
            "others may wait for it too"
        );
    }

    #[test]
    fn a_change_of_pauses_reaches_each_worker_once_whatever_its_demand_and_the_other_processes() {
        let mut subscribers = Subscribers::new();
        let topic = |types: &[&'static str]| Topic::Jobs {
            types: types.iter().map(|name| (*name).into()).collect(),
            demand: Demand::new(0),
        };
        let (_, mut one) = subscribers.add(topic(&["mail", "page"]), drop);
        let (_, mut two) = subscribers.add(topic(&["page"]), drop);
        let (_, mut leases) = subscribers.add(Topic::Leases, drop);
        let changed = Notice::PausesChanged;
        assert_eq!(subscribers.tell(&changed), Some(changed.clone()));
        for subscription in [&mut one, &mut two] {
            assert_eq!(woken(subscription), Some(Wake::Notice(changed.clone())));
            assert_eq!(woken(subscription), None);
        }
        assert_eq!(woken(&mut leases), None);
    }

    #[test]
    fn a_chain_that_was_found_and_is_missing_has_ended() {
        // What the store says of the chain, and whether its subscriber is told each time.
        for answers in [
            &[(Some(true), false), (Some(false), true)][..],
            &[(None, false), (Some(true), false), (None, true)],
            &[(None, false), (None, false)],
        ] {
            let mut subscribers = Subscribers::new();
            let (_, mut subscription) = subscribers.add(Topic::Chain(chain(1)), drop);
            let (_, mut other) = subscribers.add(Topic::Chain(chain(2)), drop);
            for (open, told) in answers {
                subscribers.found_chain(chain(1), *open);
                let ended = Wake::Notice(Notice::ChainEnded(chain(1)));
                assert_eq!(woken(&mut subscription), told.then_some(ended), "{answers:?}");
            }
            assert_eq!(woken(&mut other), None);
        }
    }

    #[test]
    fn all_are_told_to_look_or_why_nothing_comes_until_they_are_gone() {
        let mut subscribers = Subscribers::new();
        let mut named = None;
        let (_, mut leases) = subscribers.add(Topic::Leases, |subscriber| named = Some(subscriber));
        subscribers.fail(&"down".into());
        subscribers.resync();
        assert_eq!(woken(&mut leases), Some(Wake::Failed("down".into())));
        assert_eq!(woken(&mut leases), Some(Wake::Resync));
        subscribers.remove(&named.expect("the guard was made"));
        assert!(subscribers.is_empty());
    }
}
