//! What a transaction will have caused once it commits: wake-ups, events and spans, held until then.
//!
//! Nothing here may be announced before the commit, and nothing at all after a rollback; a savepoint that is rolled
//! back takes with it what was added since.

use std::collections::HashMap;
use std::fmt;

use crate::adapter::{Applied, Commit, Notice, UnblockedJob};
use crate::event::{Ages, Event, JobInfo};
use crate::event_hub::{EventHub, HeldSpan};
use crate::id::{ChainId, JobId, WorkerId};
use crate::job::{JobStatus, TypeName};

/// Held effects, in the order in which they were caused.
pub(crate) struct Effects {
    notices: Vec<Notice>,
    events: Vec<Event>,
    spans: Vec<(HeldSpan, Commit)>,
    /// A job that exists if and only if the transaction has committed.
    witness: Option<JobId>,
    hub: EventHub,
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects")
            .field("notices", &self.notices)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// A point to roll back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    notices: usize,
    events: usize,
    spans: usize,
    witness: Option<JobId>,
}

impl Effects {
    /// No effects yet; `hub` says whether events have receivers.
    pub(crate) fn new(hub: &EventHub) -> Self {
        Self {
            notices: Vec::new(),
            events: Vec::new(),
            spans: Vec::new(),
            witness: None,
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

    pub(crate) fn pauses_changed(&mut self) {
        self.notices.push(Notice::PausesChanged);
    }

    /// Holds a rare event, which is not even made if it has no receiver.
    pub(crate) fn event(&mut self, event: impl FnOnce() -> Event) {
        if self.hub.is_listened_to() {
            self.events.push(event());
        }
    }

    /// Holds a frequent event, which is not even made if it has no receiver.
    pub(crate) fn often(&mut self, event: impl FnOnce() -> Event) {
        if self.hub.is_followed() {
            self.events.push(event());
        }
    }

    /// Holds a span, if there is one.
    pub(crate) fn span(&mut self, span: Option<HeldSpan>, commit: Commit) {
        self.spans.extend(span.map(|span| (span, commit)));
    }

    /// A job was completed: by a worker or from outside, with the chain's output or with a `next` job.
    pub(crate) fn completed(
        &mut self,
        job: &JobInfo,
        ages: Ages,
        worker: Option<&WorkerId>,
        next: Option<(JobId, TypeName)>,
        applied: &Applied,
    ) {
        self.often(|| Event::JobCompleted {
            job: job.clone(),
            worker: worker.cloned(),
            continued: next.is_some(),
            duration: ages.job,
        });
        match next {
            Some((id, type_name)) => {
                let next = || JobInfo {
                    id,
                    type_name: type_name.clone(),
                    ..job.clone()
                };
                self.often(|| Event::JobCreated(next()));
                match applied.next {
                    Some(JobStatus::Blocked) => self.often(|| Event::JobBlocked(next())),
                    // It was handed over: nobody else can have it.
                    Some(JobStatus::Running) => {}
                    Some(_) => self.jobs_available(&type_name, 1),
                    // An adapter that does not say: nothing may be said of the job.
                    None => {}
                }
            }
            None => {
                self.often(|| Event::ChainCompleted {
                    chain: job.chain_id,
                    type_name: job.chain_type.clone(),
                    duration: ages.chain,
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
        self.often(|| Event::JobUnblocked {
            job: unblocked.job,
            chain: unblocked.chain,
            type_name: unblocked.type_name.clone(),
        });
        self.jobs_available(&unblocked.type_name, 1);
    }

    /// A job died, and its chain with it.
    pub(crate) fn died(&mut self, job: &JobInfo, ages: Ages, error: String) {
        self.event(|| Event::JobDead {
            job: job.clone(),
            error,
            duration: ages.job,
        });
        self.event(|| Event::ChainDead {
            chain: job.chain_id,
            type_name: job.chain_type.clone(),
            duration: ages.chain,
        });
        self.chain_ended(job.chain_id);
    }

    /// Adds the effects of another transaction, which has committed too.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.notices.append(&mut other.notices);
        self.events.append(&mut other.events);
        self.spans.append(&mut other.spans);
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
            spans: self.spans.len(),
            witness: self.witness,
        }
    }

    pub(crate) fn roll_back_to(&mut self, mark: Mark) {
        self.notices.truncate(mark.notices);
        self.events.truncate(mark.events);
        self.spans.truncate(mark.spans);
        self.witness = mark.witness;
    }

    /// Notes a job that the transaction creates under an id that this library has just made: it tells whether the
    /// transaction has committed if the store's answer to the commit is lost.
    pub(crate) fn witnessed_by(&mut self, job: JobId) {
        self.witness.get_or_insert(job);
    }

    pub(crate) fn witness(&self) -> Option<JobId> {
        self.witness
    }

    /// After the commit: ends the spans, emits the events, and returns the notices, with those of one job type added up.
    pub(crate) fn publish(mut self) -> Vec<Notice> {
        for (span, commit) in std::mem::take(&mut self.spans) {
            span.committed(commit);
        }
        for event in std::mem::take(&mut self.events) {
            self.hub.emit(event);
        }
        self.take_notices()
    }

    /// Takes the notices out, with those of one job type added up.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = Vec::new();
        let mut places: HashMap<TypeName, usize> = HashMap::new();
        for notice in std::mem::take(&mut self.notices) {
            if let Notice::JobsAvailable { type_name, count } = &notice {
                if let Some(place) = places.get(type_name) {
                    if let Some(Notice::JobsAvailable { count: total, .. }) = notices.get_mut(*place) {
                        *total += count;
                    }
                    continue;
                }
                places.insert(type_name.clone(), notices.len());
            }
            notices.push(notice);
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::adapter::{CommitSpan, Delivery, ObservabilityAdapter};

    #[test]
    fn notices_of_one_type_add_up() {
        let mut effects = Effects::new(&EventHub::new(None));
        effects.jobs_available(&"a".into(), 1);
        effects.jobs_available(&"b".into(), 5);
        effects.jobs_available(&"a".into(), 2);
        let of = |name: &'static str, count| Notice::JobsAvailable {
            type_name: name.into(),
            count,
        };
        assert_eq!(effects.publish(), [of("a", 3), of("b", 5)]);
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn add(&self, line: String) {
            self.0.lock().unwrap().push(line);
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl ObservabilityAdapter for Log {
        fn event(&self, event: &Event) {
            self.add(format!("{event:?}"));
        }

        fn delivery(&self) -> Delivery {
            Delivery::Inline
        }
    }

    struct Span(Log, &'static str);

    impl CommitSpan for Span {
        fn committed(&mut self, commit: Commit) {
            self.0.add(format!("{} {commit:?}", self.1));
            self.1 = "ended";
        }
    }

    impl Drop for Span {
        fn drop(&mut self) {
            self.0.add(format!("{} dropped", self.1));
        }
    }

    #[test]
    fn rolling_back_drops_what_came_after_the_mark() {
        let log = Log::default();
        let hub = EventHub::new(Some(Arc::new(log.clone())));
        let span = |name| hub.hold(|_| Some(Box::new(Span(log.clone(), name))));
        let missed = |count| move || Event::EventsMissed { count };
        let mut effects = Effects::new(&hub);
        effects.jobs_available(&"a".into(), 1);
        effects.span(span("kept"), Commit::Created);
        effects.often(missed(1));
        let outer = effects.mark();
        effects.jobs_available(&"a".into(), 7);
        effects.span(span("outer"), Commit::Created);
        effects.event(missed(2));
        let inner = effects.mark();
        effects.chain_ended(ChainId::from_uuid(uuid::Uuid::nil()));
        effects.span(span("inner"), Commit::Completed);
        effects.event(missed(3));
        effects.roll_back_to(inner);
        assert_eq!(log.take(), ["inner dropped"]);
        effects.roll_back_to(outer);
        assert_eq!(log.take(), ["outer dropped"]);
        let notices = effects.publish();
        assert!(matches!(notices[..], [Notice::JobsAvailable { count: 1, .. }]));
        assert_eq!(
            log.take(),
            ["kept Created", "ended dropped", "EventsMissed { count: 1 }"]
        );
    }
}
