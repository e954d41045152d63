//! The subscribers of one process, and who of them is told what.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use queuert::adapter::{Demand, Notice, NoticeSender, Topic};
use queuert::{ChainId, TypeName};

use crate::notify::payload::type_hash;

#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    last: u64,
    /// In the order in which they are asked next.
    jobs: HashMap<TypeName, VecDeque<JobSubscriber>>,
    chains: HashMap<ChainId, BTreeMap<u64, NoticeSender>>,
    leases: BTreeMap<u64, NoticeSender>,
}

#[derive(Debug)]
struct JobSubscriber {
    id: u64,
    demand: Demand,
    sender: NoticeSender,
}

impl Subscribers {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.chains.is_empty() && self.leases.is_empty()
    }

    /// Whether anybody here runs jobs of the type.
    pub(crate) fn runs(&self, type_name: &TypeName) -> bool {
        self.jobs.contains_key(type_name)
    }

    /// The types that are run here, as other processes are told.
    pub(crate) fn type_hashes(&self) -> BTreeSet<u32> {
        self.jobs.keys().map(type_hash).collect()
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn add(&mut self, id: u64, topic: Topic, sender: NoticeSender) {
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
                self.chains.entry(chain).or_default().insert(id, sender);
            }
            // Whatever else may come is as rare as a lost lease.
            _ => {
                self.leases.insert(id, sender);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u64, topic: &Topic) {
        match topic {
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
                if let Some(senders) = self.chains.get_mut(chain) {
                    senders.remove(&id);
                    if senders.is_empty() {
                        self.chains.remove(chain);
                    }
                }
            }
            _ => {
                self.leases.remove(&id);
            }
        }
    }

    /// Tells whoever listens, and returns what is left for other processes: jobs that somebody here will take are
    /// spoken for.
    pub(crate) fn tell(&mut self, notice: &Notice) -> Option<Notice> {
        match notice {
            Notice::JobsAvailable { type_name, count } => {
                let left = count - self.offer(type_name, *count);
                return (left > 0).then(|| Notice::JobsAvailable {
                    type_name: type_name.clone(),
                    count: left,
                });
            }
            Notice::ChainEnded(chain) => {
                for sender in self.chains.get(chain).into_iter().flat_map(BTreeMap::values) {
                    sender.send(notice.clone());
                }
            }
            _ => {
                for sender in self.leases.values() {
                    sender.send(notice.clone());
                }
            }
        }
        Some(notice.clone())
    }

    /// Hands jobs out to whoever can take some, each once around, and returns how many were taken.
    pub(crate) fn offer(&mut self, type_name: &TypeName, count: usize) -> usize {
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

    /// Whether any subscriber here runs jobs.
    pub(crate) fn has_workers(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether any worker here is idle.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle().next().is_some()
    }

    /// Tells all subscribers with idle workers to look at the store.
    pub(crate) fn wake_idle(&self) {
        self.idle().for_each(|subscriber| subscriber.sender.resync());
    }

    /// Subscribers with idle workers, once for each of their types.
    fn idle(&self) -> impl Iterator<Item = &JobSubscriber> {
        let all = self.jobs.values().flatten();
        all.filter(|subscriber| subscriber.demand.get() > 0)
    }

    /// Tells everybody to look at the store.
    pub(crate) fn resync(&self) {
        self.senders().for_each(NoticeSender::resync);
    }

    /// Tells everybody that nothing is heard for now.
    pub(crate) fn fail(&self, error: &Arc<str>) {
        self.senders().for_each(|sender| sender.fail(Arc::clone(error)));
    }

    /// Ends all subscriptions: whoever reads one is told that the adapter has gone, and subscribes again.
    pub(crate) fn end(&mut self) {
        self.jobs.clear();
        self.chains.clear();
        self.leases.clear();
    }

    fn senders(&self) -> impl Iterator<Item = &NoticeSender> {
        let jobs = self.jobs.values().flatten().map(|subscriber| &subscriber.sender);
        let chains = self.chains.values().flat_map(BTreeMap::values);
        jobs.chain(chains).chain(self.leases.values())
    }
}
