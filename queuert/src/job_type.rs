//! What a job type is, and the relations between job types that the compiler checks.
//!
//! `#[derive(JobTypes)]` implements all of these traits; they can also be implemented by hand (for job types that are
//! made by another macro, say). The relations are traits so that a wrongly wired chain does not compile, and each one
//! is bounded on the type in which the mistake would be, so that the message names both job types.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::adapter::StateAdapter;
use crate::blockers::{BlockerSpec, Blockers};
use crate::error::JobError;
use crate::graph::Graph;
use crate::payload::{Payload, PayloadError};
use crate::settings::JobSettings;
use crate::step::Step;
use crate::worker::RawAttempt;

// `JobInput` and `JobOutput` say by themselves how a value is written and read, and do not have serde's traits as
// supertraits: the compiler reports each supertrait that is missing, in serde's words and once per use, before it
// reports ours.

/// The traits that the input of a job must implement. Implemented for every type that has them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the input of a job",
    label = "this input cannot be stored and read back",
    note = "add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`; it must also own its data and be `Send + Sync`"
)]
pub trait JobInput: Sized + Send + Sync + 'static {
    /// Encodes the input for the store. For queuert itself; [`Payload::encode`] does the same.
    ///
    /// # Errors
    ///
    /// As [`Payload::encode`].
    #[doc(hidden)]
    fn encode(&self) -> Result<Payload, PayloadError>;

    /// Decodes a stored input. For queuert itself; [`Payload::decode`] does the same.
    ///
    /// # Errors
    ///
    /// As [`Payload::decode`].
    #[doc(hidden)]
    fn decode(stored: &Payload) -> Result<Self, PayloadError>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> JobInput for T {
    fn encode(&self) -> Result<Payload, PayloadError> {
        Payload::encode_own(self)
    }

    fn decode(stored: &Payload) -> Result<Self, PayloadError> {
        stored.decode()
    }
}

/// The traits that the output of a chain must implement. Implemented for every type that has them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of a job",
    label = "this output cannot be stored and read back",
    note = "add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`; it must also own its data and be `Send + Sync`"
)]
pub trait JobOutput: Sized + Send + Sync + 'static {
    /// Encodes the output for the store. For queuert itself; [`Payload::encode`] does the same.
    ///
    /// # Errors
    ///
    /// As [`Payload::encode`].
    #[doc(hidden)]
    fn encode(&self) -> Result<Payload, PayloadError>;

    /// Decodes a stored output. For queuert itself; [`Payload::decode`] does the same.
    ///
    /// # Errors
    ///
    /// As [`Payload::decode`].
    #[doc(hidden)]
    fn decode(stored: &Payload) -> Result<Self, PayloadError>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> JobOutput for T {
    fn encode(&self) -> Result<Payload, PayloadError> {
        Payload::encode_own(self)
    }

    fn decode(stored: &Payload) -> Result<Self, PayloadError> {
        stored.decode()
    }
}

/// A job type: the struct that is its input, with a stable name, settings and blockers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job type",
    label = "not a job type",
    note = "wrap `{Self}` in a variant of an enum that has `#[derive(JobTypes)]`"
)]
pub trait JobType: JobInput {
    /// The blockers that a job of this type waits for: `()`, [`One`](crate::One), a tuple of entry types or
    /// [`Many`](crate::Many).
    type Blockers: BlockerSpec;

    /// The stable name under which jobs of this type are stored.
    const NAME: &'static str;

    /// The settings for jobs of this type, unless the worker or the caller overrides them.
    const SETTINGS: JobSettings;

    /// This job with the given chains as blockers: pass the result to `client.start(..)` or `job.continue_with(..)`.
    ///
    /// Takes a handle, a tuple of handles, or any number of them as an array, a slice or a `Vec`, as declared in
    /// `#[job(blockers = ..)]`.
    fn blocked_by<B>(self, blockers: B) -> Step<Self>
    where
        B: Blockers,
        B::Kind: AwaitedBy<Self>,
    {
        Step::blocked(self, blockers)
    }
}

/// An enum of job types. Derived.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an enum of job types",
    note = "add `#[derive(JobTypes)]` to `{Self}`"
)]
pub trait JobTypes: Sized + 'static {
    /// The enum of attempts: one variant per job type, to `match` exhaustively.
    type Attempt<S: StateAdapter>;

    /// The names of all job types, in the order of the variants.
    const NAMES: &'static [&'static str];

    /// The graph of job types as it was declared.
    fn graph() -> Graph;

    /// Makes the attempt of the variant that the job belongs to.
    ///
    /// # Errors
    ///
    /// When the stored input or a blocker's output cannot be decoded, or the job is of no type of this enum.
    fn attempt<S: StateAdapter>(raw: RawAttempt<S>) -> Result<Self::Attempt<S>, JobError>;

    /// The settings of each type, in the order of [`NAMES`](Self::NAMES).
    fn settings() -> Vec<JobSettings>;
}

/// A job type that chains may start with.
#[diagnostic::on_unimplemented(
    message = "no chain starts with `{Self}`: it is not an entry",
    label = "not an entry job type",
    note = "mark the variant that wraps it with `#[job(entry)]`, or name the entry that leads to it",
    note = "pass the input struct itself: not a reference to it, and not the variant of the enum that wraps it"
)]
pub trait Entry: JobType {
    /// The output of a chain that starts with this job: the type that all its ends share, or an enum of them.
    type Output: Send + 'static;

    /// Decodes the output that a job of type `finished_by` wrote.
    ///
    /// # Errors
    ///
    /// When no end of this chain has that type, or the payload is not its output.
    fn decode_output(finished_by: &str, output: &Payload) -> Result<Self::Output, PayloadError>;
}

// The relations below do not have `JobType` as a supertrait, although only job types have them: an input that cannot be
// stored would be reported again for each of them.

/// A job type that a `Previous` may continue with.
#[diagnostic::on_unimplemented(
    message = "`{Previous}` does not continue with `{Self}`",
    label = "`{Self}` is not a declared continuation of `{Previous}`",
    note = "add `{Self}` to `#[job(continues = [..])]` of `{Previous}`, or continue with a declared one"
)]
pub trait ContinuationOf<Previous> {}

/// The type that a job of type `J` finishes its chain with.
#[diagnostic::on_unimplemented(
    message = "`{J}` does not finish its chain with `{Self}`",
    label = "`{Self}` is not the declared output of `{J}`",
    note = "if `{J}` declares another type in `#[job(output = ..)]`, finish with that, or declare this one",
    note = "if it declares none, it cannot finish its chain: end it with `continue_with(..)`, or declare an output"
)]
pub trait OutputOf<J>: JobOutput {}

/// A job type that waits for no other chain.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job that can be created without blockers",
    label = "its blockers are missing, or it is no job type",
    note = "if `{Self}` declares chains to wait for in `#[job(blockers = ..)]`, give them: `{Self} {{ .. }}.blocked_by(..)`",
    note = "if it is not a job type yet, wrap it in a variant of an enum that has `#[derive(JobTypes)]`"
)]
pub trait Unblocked {}

/// The blockers that a `J` waits for: [`One`](crate::One), a tuple of entry types or [`Many`](crate::Many).
///
/// The trait is implemented by the blockers and not by the job, so that the message of the compiler names both types.
#[diagnostic::on_unimplemented(
    message = "`{J}` does not wait for `{Self}`",
    label = "not the blockers that `{J}` declares",
    note = "give exactly the chains in `#[job(blockers = ..)]` of `{J}`, in that order; without it, `{J}` waits for none",
    note = "`One<A>` is the handle of a chain of `A`, `(A, B)` a tuple of two, `Many<A>` a `Vec`, slice or array of them"
)]
pub trait AwaitedBy<J> {}

/// An entry job type whose chain a `J` waits for, so that its output can be read by name.
#[diagnostic::on_unimplemented(
    message = "`{J}` does not wait for a chain of `{Self}`",
    label = "`{Self}` is not a declared blocker of `{J}`",
    note = "add `{Self}` to `#[job(blockers = ..)]` of `{J}`, or read a declared blocker"
)]
pub trait BlockerOf<J: JobType>: Entry {
    /// The outputs of the blockers of this type, in the order in which they were given.
    fn outputs(blockers: &<J::Blockers as BlockerSpec>::Outputs) -> Vec<&Self::Output>;
}
