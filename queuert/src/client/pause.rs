//! Pausing and resuming job types.

use std::time::Duration;

use super::Client;
use super::request::{Operation, Request, RequestContext, Sealed};
use super::start::check_type_name;
use crate::adapter::{JobQuery, StateAdapter, rules};
use crate::error::Error;
use crate::event::Event;
use crate::job::TypeName;
use crate::job_type::JobType;
use crate::pause::Pause;
use crate::time::{Schedule, Timestamp};

/// The longest reason and the longest name of an author, in bytes.
const LONGEST_TEXT: usize = 4_096;

impl<S: StateAdapter> Client<S> {
    /// Pauses a job type: workers begin no more jobs of it until it is [resumed](Self::resume) or the pause ends. Running
    /// jobs end as usual, and new ones can be created. Of a chain whose next job is of the type, the jobs before go on.
    ///
    /// It is in force in every process within a second with notifications, and within the poll interval of each worker
    /// without. A pause that is in force keeps its beginning, and gets the new reason, author and end.
    ///
    /// ```
    /// # use queuert::{Client, memory::MemoryState, JobTypes};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { order: u64 }
    /// # #[derive(JobTypes)] enum Shop { #[job(entry, output = ())] Charge(Charge) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), queuert::Error> {
    /// # let client = Client::new(MemoryState::new());
    /// client.pause::<Charge>().reason("the bank is down").by("ada").await?;
    /// assert_eq!(client.paused().await?.len(), 1);
    /// client.resume::<Charge>().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the end is not in the future, or a text is longer than 4 KiB or has a NUL character in it;
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The type may or may not have been paused; repeating the call is harmless.
    pub fn pause<J: JobType>(&self) -> Request<'_, S, PauseType> {
        Request::new(self, PauseType::new(TypeName::from(J::NAME), false))
    }

    /// The same for a type by its name, for tools that do not know the types of an application.
    ///
    /// # Errors
    ///
    /// Those of [`pause`](Self::pause), and [`Error::UnknownType`] if the store has no job of this type: nothing is paused
    /// then.
    ///
    /// # Cancel safety
    ///
    /// The type may or may not have been paused; repeating the call is harmless.
    pub fn pause_type(&self, type_name: impl Into<TypeName>) -> Request<'_, S, PauseType> {
        Request::new(self, PauseType::new(type_name.into(), true))
    }

    /// Ends the pause of a job type, and returns that pause; `None` if the type was not paused.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The type may or may not have been resumed; repeating the call is harmless.
    pub fn resume<J: JobType>(&self) -> Request<'_, S, ResumeType> {
        Request::new(self, ResumeType(TypeName::from(J::NAME)))
    }

    /// The same for a type by its name.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The type may or may not have been resumed; repeating the call is harmless.
    pub fn resume_type(&self, type_name: impl Into<TypeName>) -> Request<'_, S, ResumeType> {
        Request::new(self, ResumeType(type_name.into()))
    }

    /// The pauses that are in force, by type name.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// It reads, and leaves nothing behind.
    pub fn paused(&self) -> Request<'_, S, ListPauses> {
        Request::new(self, ListPauses(()))
    }
}

/// Pauses a job type.
#[derive(Debug)]
pub struct PauseType {
    pause: Pause,
    end: Option<Schedule>,
    /// Whether the store must have a job of the type.
    only_known: bool,
}

impl PauseType {
    fn new(type_name: TypeName, only_known: bool) -> Self {
        Self {
            // The store's clock says when it begins.
            pause: Pause::new(type_name, Timestamp::from_micros(0)),
            end: None,
            only_known,
        }
    }
}

/// Resumes a job type.
#[derive(Debug)]
pub struct ResumeType(TypeName);

/// Reads the pauses that are in force.
#[derive(Debug)]
pub struct ListPauses(());

impl<S: StateAdapter> Request<'_, S, PauseType> {
    /// Says why. Default: nothing.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.operation.pause.reason = Some(reason.into());
        self
    }

    /// Says who does it. Default: nothing.
    pub fn by(mut self, author: impl Into<String>) -> Self {
        self.operation.pause.author = Some(author.into());
        self
    }

    /// Ends the pause by itself at a time, by the store's clock. Default: it lasts until the type is resumed.
    pub fn until(mut self, end: impl Into<Timestamp>) -> Self {
        self.operation.end = Some(Schedule::At(end.into()));
        self
    }

    /// Ends the pause by itself after this time. Default: it lasts until the type is resumed.
    pub fn lasting(mut self, duration: Duration) -> Self {
        self.operation.end = Some(Schedule::After(duration));
        self
    }
}

impl Sealed for PauseType {}
impl Sealed for ResumeType {}
impl Sealed for ListPauses {}

fn check_text(what: &'static str, text: Option<&str>) -> Result<(), Error> {
    let text = text.unwrap_or_default();
    let problem = if text.len() > LONGEST_TEXT {
        format!("it has {} bytes; the longest has {LONGEST_TEXT}", text.len())
    } else if text.contains('\0') {
        "it has a NUL character in it, which not every store can keep; leave it out".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Invalid { what, problem })
}

impl<S: StateAdapter> Operation<S> for PauseType {
    type Output = Pause;

    fn writes(&self) -> bool {
        true
    }

    async fn run(self, context: RequestContext<'_, S>) -> Result<Pause, Error> {
        let RequestContext {
            client,
            mut within,
            effects,
        } = context;
        let Self {
            mut pause,
            end,
            only_known,
        } = self;
        check_type_name(pause.type_name.as_str())?;
        check_text("the reason of a pause", pause.reason.as_deref())?;
        check_text("the author of a pause", pause.author.as_deref())?;
        let state = client.state();
        let stored = state.list_pauses(within.as_deref_mut()).await?;
        let existing = stored.pauses.iter().find(|stored| stored.type_name == pause.type_name);
        if only_known && existing.is_none() {
            let query = JobQuery {
                types: Some(vec![pause.type_name.clone()]),
                limit: 1,
                ..JobQuery::default()
            };
            if state.list_jobs(within.as_deref_mut(), &query).await?.is_empty() {
                return Err(Error::UnknownType(pause.type_name));
            }
        }
        pause.until = end.map(|end| match end {
            // As it is: one that has passed is refused.
            Schedule::At(end) => end,
            end => end.resolve(stored.now),
        });
        let Some(pause) = rules::pause(existing, pause, stored.now) else {
            return Err(Error::Invalid {
                what: "the end of a pause",
                problem: format!(
                    "it is not after {}, the time of the store; give a later one, or none",
                    stored.now
                ),
            });
        };
        state.put_pause(within, &pause).await?;
        effects.pauses_changed();
        effects.event(|| Event::TypePaused(pause.clone()));
        Ok(pause)
    }
}

impl<S: StateAdapter> Operation<S> for ResumeType {
    type Output = Option<Pause>;

    fn writes(&self) -> bool {
        true
    }

    async fn run(self, context: RequestContext<'_, S>) -> Result<Option<Pause>, Error> {
        let RequestContext {
            client,
            mut within,
            effects,
        } = context;
        let state = client.state();
        let stored = state.list_pauses(within.as_deref_mut()).await?;
        let Some(pause) = stored.pauses.into_iter().find(|stored| stored.type_name == self.0) else {
            return Ok(None);
        };
        state.delete_pause(within, &self.0).await?;
        if !pause.is_in_force(stored.now) {
            return Ok(None);
        }
        effects.pauses_changed();
        // Workers that know nothing of the pause may have let hints about its jobs pass.
        effects.jobs_available(&self.0, 1);
        effects.event(|| Event::TypeResumed(pause.clone()));
        Ok(Some(pause))
    }
}

impl<S: StateAdapter> Operation<S> for ListPauses {
    type Output = Vec<Pause>;

    fn writes(&self) -> bool {
        false
    }

    async fn run(self, context: RequestContext<'_, S>) -> Result<Vec<Pause>, Error> {
        let RequestContext { client, within, .. } = context;
        Ok(client.state().list_pauses(within).await?.in_force())
    }
}
