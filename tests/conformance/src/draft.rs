//! Jobs and outcomes in a few words.

use std::time::Duration;

use queuert::adapter::{HandOver, NewChain, NewJob, Outcome};
use queuert::{ChainId, Deduplication, JobId, Payload, Schedule, Timestamp};

use crate::identity;

/// A job or chain that is about to be created.
#[derive(Clone)]
pub(crate) struct Draft {
    job: NewJob,
    deduplication: Option<Deduplication>,
}

/// A job of this type that may run at once.
pub(crate) fn draft(type_name: &str) -> Draft {
    Draft {
        job: NewJob::new(identity::job_id(), type_name.to_owned(), Payload::from_text("null")),
        deduplication: None,
    }
}

impl Draft {
    pub(crate) fn id(&self) -> JobId {
        self.job.id
    }

    pub(crate) fn chain_id(&self) -> ChainId {
        self.job.id.as_chain()
    }

    #[must_use]
    pub(crate) fn with_id(mut self, id: JobId) -> Self {
        self.job.id = id;
        self
    }

    #[must_use]
    pub(crate) fn input(mut self, text: &str) -> Self {
        self.job.input = Payload::from_text(text);
        self
    }

    #[must_use]
    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.job.schedule = Schedule::After(delay);
        self
    }

    #[must_use]
    pub(crate) fn at(mut self, time: Timestamp) -> Self {
        self.job.schedule = Schedule::At(time);
        self
    }

    #[must_use]
    pub(crate) fn priority(mut self, priority: i16) -> Self {
        self.job.priority = priority;
        self
    }

    #[must_use]
    pub(crate) fn max_attempts(mut self, attempts: u32) -> Self {
        self.job.max_attempts = Some(attempts);
        self
    }

    #[must_use]
    pub(crate) fn blocked_by(mut self, chains: &[ChainId]) -> Self {
        self.job.blockers = chains.to_vec();
        self
    }

    #[must_use]
    pub(crate) fn trace(mut self, context: &str) -> Self {
        self.job.trace_context = Some(context.to_owned());
        self
    }

    #[must_use]
    pub(crate) fn deduplicate(mut self, deduplication: impl Into<Deduplication>) -> Self {
        self.deduplication = Some(deduplication.into());
        self
    }

    #[must_use]
    pub(crate) fn hand_over(mut self, hand_over: HandOver) -> Self {
        self.job.hand_over = Some(hand_over);
        self
    }

    pub(crate) fn chain(self) -> NewChain {
        let mut chain = NewChain::new(self.job);
        chain.deduplication = self.deduplication;
        chain
    }

    /// As the end of an attempt that goes on with this job.
    pub(crate) fn next(self) -> Outcome {
        Outcome::Continue {
            next: Box::new(self.job),
        }
    }
}

pub(crate) fn finish(output: &str) -> Outcome {
    Outcome::Finish {
        output: Payload::from_text(output),
    }
}

pub(crate) fn retry(schedule: Schedule, error: &str) -> Outcome {
    Outcome::Retry {
        schedule,
        error: error.to_owned(),
    }
}

pub(crate) fn bury(error: &str) -> Outcome {
    Outcome::Bury {
        error: error.to_owned(),
    }
}

pub(crate) fn snooze(delay: Duration) -> Outcome {
    Outcome::Snooze {
        schedule: Schedule::After(delay),
    }
}

/// One outcome of each kind, for rules that hold for all of them.
pub(crate) fn every_outcome() -> Vec<Outcome> {
    vec![
        finish("1"),
        draft("next").next(),
        retry(Schedule::Now, "failed"),
        bury("fatal"),
        Outcome::Release,
        snooze(Duration::from_secs(60)),
    ]
}
