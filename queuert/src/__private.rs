//! What code made by `#[derive(JobTypes)]` calls. Not public API: it changes without notice.

pub use tokio::time::Instant;

use crate::job_type::{BlockerOf, JobType, OutputOf};
use crate::payload::{Payload, PayloadError};
use crate::settings::JobSettings;

/// Reads what a `J` finished with. The bound is the derived implementation, so that a type which cannot be an output
/// is reported there and nowhere else.
pub fn decode_output<J: JobType, T: OutputOf<J>>(output: &Payload) -> Result<T, PayloadError> {
    T::decode(output)
}

/// The name of a blocker of a `J`. The bound is the derived implementation, for the same reason.
pub fn blocker_name<J: JobType, A: BlockerOf<J>>() -> &'static str {
    A::NAME
}

/// The error for an output that was written by a job which does not end chains of this type.
pub fn no_such_end(finished_by: &str, ends: &[&str]) -> PayloadError {
    PayloadError::new(format!(
        "such a chain is finished by `{}`, not by `{finished_by}`",
        ends.join("` or `")
    ))
}

/// Refuses settings that were given as expressions, which the derive cannot check, while the user's crate is compiled. The
/// messages are those of the derive for literals.
pub const fn check_settings(settings: JobSettings) {
    if let Some(retry) = settings.retry {
        assert!(
            retry.max_attempts > 0,
            "`max_attempts` is 0: a job needs at least one attempt"
        );
        assert!(
            retry.multiplier.is_finite() && retry.multiplier >= 1.0,
            "`multiplier` must be a finite number of at least 1"
        );
        assert!(
            retry.jitter >= 0.0 && retry.jitter < 1.0,
            "`jitter` must be at least 0 and below 1"
        );
        assert!(
            retry.initial.as_nanos() <= retry.maximum.as_nanos(),
            "the first delay is longer than the longest: lower `initial` or raise `maximum`"
        );
    }
    if let Some(lease) = settings.lease {
        assert!(
            lease.duration.as_millis() >= 10,
            "a lease must last at least 10 ms, and long enough to be renewed"
        );
        assert!(
            !lease.renew_every.is_zero() && lease.renew_every.as_nanos() < lease.duration.as_nanos(),
            "the lease ends before its renewal: renew at least twice per lease"
        );
    }
    if let Some(timeout) = settings.timeout {
        assert!(
            !timeout.is_zero(),
            "`timeout` is zero, so no attempt could ever succeed: leave it out for no timeout"
        );
    }
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
