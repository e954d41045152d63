//! The subscribers of one process, and who of them is told what.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use queuert::adapter::{Demand, Notice, NoticeSender, Topic};
use queuert::{ChainId, TypeName};

#[derive(Debug, Default)]
pub(crate) struct Hub {
    last: u64,
    /// In the order in which they are asked next.
    jobs: HashMap<TypeName, VecDeque<JobSubscriber>>,
    chains: HashMap<ChainId, ChainSubscribers>,
    leases: BTreeMap<u64, NoticeSender>,
}

#[derive(Debug)]
struct JobSubscriber {
    id: u64,
    demand: Demand,
    sender: NoticeSender,
}

#[derive(Debug, Default)]
struct ChainSubscribers {
    /// Whether the chain has been seen in the store: one that is gone after that was deleted, one that is not there
    /// before may still come.
    seen: bool,
    senders: BTreeMap<u64, NoticeSender>,
}

impl Hub {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.chains.is_empty() && self.leases.is_empty()
    }

    pub(crate) fn types(&self) -> Vec<TypeName> {
        self.jobs.keys().cloned().collect()
    }

    pub(crate) fn chains(&self) -> Vec<ChainId> {
        self.chains.keys().copied().collect()
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
                self.chains.entry(chain).or_default().senders.insert(id, sender);
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
                if let Some(subscribers) = self.chains.get_mut(chain) {
                    subscribers.senders.remove(&id);
                    if subscribers.senders.is_empty() {
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
                let left = self.offer(type_name, *count);
                return (left > 0).then(|| Notice::JobsAvailable {
                    type_name: type_name.clone(),
                    count: left,
                });
            }
            Notice::ChainEnded(chain) => {
                for sender in self
                    .chains
                    .get(chain)
                    .into_iter()
                    .flat_map(|found| found.senders.values())
                {
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

    /// Hands jobs out to whoever can take some, each once around, and returns how many are left.
    pub(crate) fn offer(&mut self, type_name: &TypeName, mut count: usize) -> usize {
        let Some(queue) = self.jobs.get_mut(type_name) else {
            return count;
        };
        for _ in 0..queue.len() {
            if count == 0 {
                break;
            }
            let Some(subscriber) = queue.pop_front() else {
                break;
            };
            let taken = subscriber.demand.take(count);
            if taken > 0 {
                count -= taken;
                subscriber.sender.send(Notice::JobsAvailable {
                    type_name: type_name.clone(),
                    count: taken,
                });
            }
            queue.push_back(subscriber);
        }
        count
    }

    /// Notes what the store says about a chain, and tells its subscribers if it has ended.
    pub(crate) fn found_chain(&mut self, chain: ChainId, open: Option<bool>) {
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

    /// Tells everybody to look at the store.
    pub(crate) fn resync(&self) {
        self.senders().for_each(NoticeSender::resync);
    }

    /// Tells everybody that nothing is heard for now, and why.
    pub(crate) fn fail(&self, error: &Arc<str>) {
        self.senders().for_each(|sender| sender.fail(Arc::clone(error)));
    }

    fn senders(&self) -> impl Iterator<Item = &NoticeSender> {
        let jobs = self.jobs.values().flatten().map(|subscriber| &subscriber.sender);
        let chains = self.chains.values().flat_map(|found| found.senders.values());
        jobs.chain(chains).chain(self.leases.values())
    }
}
