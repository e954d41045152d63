//! A job that is about to be created, with its settings: what `start` and `continue_with` take.

use std::time::Duration;

use crate::blockers::Blockers;
use crate::deduplication::Deduplication;
use crate::id::{ChainId, JobId};
use crate::job_type::{AwaitedBy, JobType, Unblocked};
use crate::time::{Schedule, Timestamp};

/// A job that is about to be created: its input, its blockers and its settings.
///
/// A bare input converts into a step; make one yourself to configure it:
///
/// ```
/// # use std::time::Duration;
/// # use queuert::Step;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Remind { user: u64 }
/// # #[derive(queuert::JobTypes)]
/// # enum Reminders { #[job(entry, output = ())] Remind(Remind) }
/// let step = Step::new(Remind { user: 7 }).delay(Duration::from_secs(3600)).priority(5);
/// ```
#[derive(Debug)]
#[must_use = "a step is only a description: pass it to `start` or `continue_with`"]
pub struct Step<J> {
    pub(crate) input: J,
    pub(crate) settings: StepSettings,
}

#[derive(Debug, Default)]
pub(crate) struct StepSettings {
    pub(crate) id: Option<JobId>,
    pub(crate) blockers: Vec<ChainId>,
    pub(crate) schedule: Schedule,
    pub(crate) priority: Option<i16>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) deduplication: Option<Deduplication>,
}

impl<J: JobType> Step<J> {
    /// A job without blockers.
    pub fn new(input: J) -> Self
    where
        J: Unblocked,
    {
        Self {
            input,
            settings: StepSettings::default(),
        }
    }

    /// A job that waits for the given chains. [`JobType::blocked_by`] is the shorter way.
    pub fn blocked<B>(input: J, blockers: B) -> Self
    where
        B: Blockers,
        B::Kind: AwaitedBy<J>,
    {
        let blockers = blockers.chain_ids();
        Self {
            input,
            settings: StepSettings {
                blockers,
                ..StepSettings::default()
            },
        }
    }
}

/// The setters of a job that is about to be created, for a [`Step`] and for the request that starts one. `$path` leads to the
/// [`StepSettings`].
macro_rules! setters {
    ($this:ident => $($path:ident).+) => {
        /// Runs the job after a delay, measured by the store's clock. Default: no delay.
        pub fn delay(mut $this, delay: Duration) -> Self {
            $($path).+.schedule = $crate::Schedule::After(delay);
            $this
        }

        /// Runs the job at a given time. A time that has passed means now. Default: now.
        pub fn at(mut $this, time: impl Into<Timestamp>) -> Self {
            $($path).+.schedule = $crate::Schedule::At(time.into());
            $this
        }

        /// Sets the priority: each unit is worth one minute of waiting. Default: the priority of the job type, else 0.
        pub fn priority(mut $this, priority: i16) -> Self {
            $($path).+.priority = Some(priority);
            $this
        }

        /// Sets the number of attempts after which the job is dead. Default: the worker's setting.
        pub fn max_attempts(mut $this, attempts: u32) -> Self {
            $($path).+.max_attempts = Some(attempts);
            $this
        }

        /// Sets the id of the job; the id of a chain is that of its first job. An id that exists is refused. Default: a new
        /// UUIDv7.
        pub fn id(mut $this, id: impl Into<JobId>) -> Self {
            $($path).+.id = Some(id.into());
            $this
        }

        /// Starts the chain only if no other chain with this key counts; otherwise the start returns the existing chain.
        /// Ignored for a continuation. Default: no key.
        pub fn deduplicate(mut $this, deduplication: impl Into<Deduplication>) -> Self {
            $($path).+.deduplication = Some(deduplication.into());
            $this
        }
    };
}

pub(crate) use setters;

// Not bounded, so that a step which could not be made is reported where it is made and not again at each setting.
impl<J> Step<J> {
    setters!(self => self.settings);
}

/// A job that can be created: an input without blockers, or a [`Step`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job that could be created",
    note = "pass the input struct of a job type, or `Step::new(input)` to set a delay, a priority or a key"
)]
pub trait IntoStep {
    /// The job type.
    type Job: JobType;

    /// The job with its settings.
    fn into_step(self) -> Step<Self::Job>;
}

impl<J: JobType + Unblocked> IntoStep for J {
    type Job = J;

    fn into_step(self) -> Step<J> {
        Step::new(self)
    }
}

impl<J: JobType> IntoStep for Step<J> {
    type Job = J;

    fn into_step(self) -> Self {
        self
    }
}
