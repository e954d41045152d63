//! Runs jobs.

mod signal;

pub use signal::{AbortReason, AbortSignal};

use crate::adapter::StateAdapter;
use crate::error::JobError;
use crate::job_type::JobType;

/// An attempt whose job type is not known yet.
#[derive(Debug)]
pub struct RawAttempt<S>(std::marker::PhantomData<S>);

impl<S: StateAdapter> RawAttempt<S> {
    /// The name of the job's type.
    pub fn type_name(&self) -> &str {
        ""
    }

    /// As an attempt of job type `J`.
    ///
    /// # Errors
    ///
    /// When the job is of another type, or its input or a blocker's output cannot be decoded.
    pub fn typed<J: JobType>(self) -> Result<Attempt<J, S>, JobError> {
        Err(JobError::fatal("x"))
    }

    /// The error for a job of no type of the enum `enum_name`.
    pub fn unknown(&self, enum_name: &str) -> JobError {
        JobError::fatal(format!("`{}` is no job type of `{enum_name}`", self.type_name()))
    }
}

/// An attempt.
#[derive(Debug)]
pub struct Attempt<J, S>(std::marker::PhantomData<(J, S)>);
