//! What code made by `#[derive(JobTypes)]` calls. Not public API: it changes without notice.

use crate::job_type::{BlockerOf, Entry, JobType, OutputOf};
use crate::payload::{Payload, PayloadError};

/// Reads what a `J` finished with. The bound is the derived implementation, so that a type which cannot be an output
/// is reported there and nowhere else.
pub fn decode_output<J: JobType, T: OutputOf<J>>(output: &Payload) -> Result<T, PayloadError> {
    T::decode(output)
}

/// The name of a blocker of a `J`. The bound is the derived implementation, for the same reason.
pub fn blocker_name<J: JobType, A: BlockerOf<J>>() -> &'static str {
    A::NAME
}

/// The error for an output that was written by a job which ends no chain of `J`.
pub fn no_such_end<J: Entry>(finished_by: &str, ends: &[&str]) -> PayloadError {
    PayloadError::new(format!(
        "a chain of `{}` is finished by `{}`, not by `{finished_by}`",
        J::NAME,
        ends.join("` or `")
    ))
}

/// Reads what a variant wraps, as far as the compiler's search for dead code is concerned.
pub fn take<T>(_: T) {}

/// `Debug` for generated enums, whose contents need not have it: `(&Probe(&value)).shown()` is the value if it has,
/// and a placeholder if not. The method of the first trait is found first, that of the second after one more borrow.
pub mod debug {
    use std::fmt;

    #[derive(Debug)]
    pub struct Probe<'a, T>(pub &'a T);

    pub trait Shown<'a> {
        fn shown(&self) -> &'a dyn fmt::Debug;
    }

    impl<'a, T: fmt::Debug> Shown<'a> for Probe<'a, T> {
        fn shown(&self) -> &'a dyn fmt::Debug {
            self.0
        }
    }

    pub trait Opaque {
        fn shown(&self) -> &'static dyn fmt::Debug;
    }

    impl<T> Opaque for &Probe<'_, T> {
        fn shown(&self) -> &'static dyn fmt::Debug {
            &Placeholder
        }
    }

    struct Placeholder;

    impl fmt::Debug for Placeholder {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("..")
        }
    }

    pub fn write(f: &mut fmt::Formatter<'_>, name: &str, variant: &str, value: &dyn fmt::Debug) -> fmt::Result {
        f.write_str(name)?;
        f.write_str("::")?;
        f.debug_tuple(variant).field(value).finish()
    }
}
