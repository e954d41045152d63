//! What a transaction will have caused once it commits: wake-ups and events, held until then.
//!
//! Nothing here may be announced before the commit, and nothing at all after a rollback; a savepoint that is rolled
//! back takes with it what was added since.

use crate::adapter::{Applied, Notice, UnblockedJob};
use crate::event::{Event, JobInfo};
use crate::event_hub::EventHub;
use crate::id::{ChainId, JobId, WorkerId};
use crate::job::{JobStatus, TypeName};

/// Held effects, in the order in which they were caused.
#[derive(Debug)]
pub(crate) struct Effects {
    notices: Vec<Notice>,
    events: Vec<Event>,
    hub: EventHub,
}

/// A point to roll back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    notices: usize,
    events: usize,
}

impl Effects {
    /// Nothing yet; `hub` tells whether anybody would hear of events.
    pub(crate) fn new(hub: &EventHub) -> Self {
        Self {
            notices: Vec::new(),
            events: Vec::new(),
            hub: hub.clone(),
        }
    }

    pub(crate) fn jobs_available(&mut self, type_name: &TypeName, count: usize) {
        self.notices.push(Notice::JobsAvailable {
            type_name: type_name.clone(),
            count,
        });
    }

    pub(crate) fn chain_ended(&mut self, chain: ChainId) {
        self.notices.push(Notice::ChainEnded(chain));
    }

    pub(crate) fn lease_lost(&mut self, job: JobId) {
        self.notices.push(Notice::LeaseLost(job));
    }

    /// Holds an event, which is not even made if nobody listens.
    pub(crate) fn event(&mut self, event: impl FnOnce() -> Event) {
        if self.hub.is_listened_to() {
            self.events.push(event());
        }
    }

    /// A job was completed: by a worker or from outside, with the chain's output or with a `next` job.
    pub(crate) fn completed(
        &mut self,
        job: &JobInfo,
        worker: Option<&WorkerId>,
        next: Option<(JobId, TypeName)>,
        applied: &Applied,
    ) {
        self.event(|| Event::JobCompleted {
            job: job.clone(),
            worker: worker.cloned(),
            continued: next.is_some(),
        });
        match next {
            Some((id, type_name)) => {
                let next = || JobInfo {
                    id,
                    type_name: type_name.clone(),
                    ..job.clone()
                };
                self.event(|| Event::JobCreated(next()));
                match applied.next {
                    Some(JobStatus::Blocked) => self.event(|| Event::JobBlocked(next())),
                    // It was handed over: nobody else can have it.
                    Some(JobStatus::Running) => {}
                    Some(_) => self.jobs_available(&type_name, 1),
                    // The answer was lost, and with it whether the job waits for others: nothing may be said of it.
                    None => {}
                }
            }
            None => {
                self.event(|| Event::ChainCompleted {
                    chain: job.chain_id,
                    type_name: job.chain_type.clone(),
                });
                self.chain_ended(job.chain_id);
            }
        }
        for unblocked in &applied.unblocked {
            self.unblocked(unblocked);
        }
    }

    /// A job waits for nothing any more.
    pub(crate) fn unblocked(&mut self, unblocked: &UnblockedJob) {
        self.event(|| Event::JobUnblocked {
            job: unblocked.job,
            chain: unblocked.chain,
            type_name: unblocked.type_name.clone(),
        });
        self.jobs_available(&unblocked.type_name, 1);
    }

    /// A job died, and its chain with it.
    pub(crate) fn died(&mut self, job: &JobInfo, error: String) {
        self.event(|| Event::JobDead {
            job: job.clone(),
            error,
        });
        self.event(|| Event::ChainDead {
            chain: job.chain_id,
            type_name: job.chain_type.clone(),
        });
        self.chain_ended(job.chain_id);
    }

    /// Whether jobs of a type for which `wanted` says yes became due.
    pub(crate) fn make_available(&self, wanted: impl Fn(&TypeName) -> bool) -> bool {
        self.notices
            .iter()
            .any(|notice| matches!(notice, Notice::JobsAvailable { type_name, .. } if wanted(type_name)))
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark {
            notices: self.notices.len(),
            events: self.events.len(),
        }
    }

    pub(crate) fn roll_back_to(&mut self, mark: Mark) {
        self.notices.truncate(mark.notices);
        self.events.truncate(mark.events);
    }

    /// The notices, with those of one job type added up, and the events.
    pub(crate) fn into_parts(mut self) -> (Vec<Notice>, Vec<Event>) {
        (self.take_notices(), self.events)
    }

    /// Takes the notices out, with those of one job type added up.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = Vec::new();
        // Where each type is, in order of first mention; transactions touch few types.
        let mut places: Vec<(TypeName, usize)> = Vec::new();
        for notice in std::mem::take(&mut self.notices) {
            if let Notice::JobsAvailable { type_name, count } = &notice {
                if let Some((_, place)) = places.iter().find(|(known, _)| known == type_name) {
                    if let Some(Notice::JobsAvailable { count: total, .. }) = notices.get_mut(*place) {
                        *total += count;
                    }
                    continue;
                }
                places.push((type_name.clone(), notices.len()));
            }
            notices.push(notice);
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_one_type_add_up() {
        let mut effects = Effects::new(&EventHub::new(None));
        effects.jobs_available(&"a".into(), 1);
        effects.jobs_available(&"b".into(), 5);
        effects.jobs_available(&"a".into(), 2);
        let (notices, _) = effects.into_parts();
        let of = |name: &'static str, count| Notice::JobsAvailable {
            type_name: name.into(),
            count,
        };
        assert_eq!(notices, [of("a", 3), of("b", 5)]);
    }

    #[test]
    fn rolling_back_drops_what_came_after_the_mark() {
        let mut effects = Effects::new(&EventHub::new(None));
        effects.jobs_available(&"a".into(), 1);
        let outer = effects.mark();
        effects.jobs_available(&"a".into(), 7);
        let inner = effects.mark();
        effects.chain_ended(ChainId::from_uuid(uuid::Uuid::nil()));
        effects.roll_back_to(inner);
        effects.roll_back_to(outer);
        let (notices, events) = effects.into_parts();
        assert_eq!(notices.len(), 1);
        assert!(matches!(notices[0], Notice::JobsAvailable { count: 1, .. }));
        assert!(events.is_empty());
    }
}
