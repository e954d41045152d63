//! The job types of the cases.

use queuert::JobTypes;
use serde::{Deserialize, Serialize};

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
    )+};
}

inputs! {
    /// A chain of one job.
    Work { n: u32 }
    /// Another chain of one job, with another output.
    Note { text: String }
    /// The first of three.
    First { n: u32 }
    /// The second of three.
    Second { n: u32 }
    /// The third of three.
    Third { n: u32 }
    /// Goes one way or the other.
    Triage { n: u32 }
    /// For small numbers.
    Small { n: u32 }
    /// For large ones, with an input of another shape.
    Large { text: String, times: usize }
    /// Continues with itself.
    Countdown { left: u32, total: u32 }
    /// Continues with what comes back to it.
    Ping { n: u32 }
    /// Goes back to the one before, or ends.
    Pong { n: u32 }
    /// One of two ways to `Shared`.
    FromHere { n: u32 }
    /// The other.
    FromThere { n: u32 }
    /// Reached from two chain types.
    Shared { n: u32 }
    /// Waits for one chain of three jobs.
    After { n: u32 }
    /// Waits for two chains of different types.
    Pair { n: u32 }
    /// Waits for any number of chains.
    Gather { n: u32 }
    /// Continues with what waits.
    Plan { n: u32 }
    /// A continuation that waits for any number of chains.
    Assemble { n: u32 }
    /// With settings of its own.
    Tuned { n: u32 }
}

#[derive(JobTypes)]
pub(crate) enum Cases {
    #[job(entry, output = u32)]
    Work(Work),
    #[job(entry, output = String)]
    Note(Note),
    #[job(entry, continues = [Second])]
    First(First),
    #[job(continues = [Third])]
    Second(Second),
    #[job(output = u32)]
    Third(Third),
    #[job(entry, continues = [Small, Large])]
    Triage(Triage),
    #[job(output = u32)]
    Small(Small),
    #[job(output = String)]
    Large(Large),
    #[job(entry, continues = [Countdown], output = u32)]
    Countdown(Countdown),
    #[job(entry, continues = [Pong])]
    Ping(Ping),
    #[job(continues = [Ping], output = u32)]
    Pong(Pong),
    #[job(entry, continues = [Shared])]
    FromHere(FromHere),
    #[job(entry, continues = [Shared])]
    FromThere(FromThere),
    #[job(output = String)]
    Shared(Shared),
    #[job(entry, blockers = First, output = u32)]
    After(After),
    #[job(entry, blockers = (Work, Note), output = String)]
    Pair(Pair),
    #[job(entry, blockers = [Work], output = Vec<u32>)]
    Gather(Gather),
    #[job(entry, continues = [Assemble])]
    Plan(Plan),
    #[job(blockers = [Work], output = Vec<u32>)]
    Assemble(Assemble),
    #[job(
        entry,
        output = u32,
        retry(max_attempts = 2, initial = "5ms", maximum = "20ms"),
        lease = "10s",
        timeout = "90ms",
        priority = 3
    )]
    Tuned(Tuned),
}
