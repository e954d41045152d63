//! The job types of the simulation, and what their processors compute: pure functions, so that the model can tell
//! whether what was stored is right.

use queuert::{JobType, Payload};
use serde::{Deserialize, Serialize};

/// What each attempt does, by the number of the claim; those beyond the script work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Script(pub Vec<Act>);

/// What an attempt does before it completes, or instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Completes.
    Work,
    /// Takes some milliseconds, stopping when told to, then completes.
    Listen(u64),
    /// Takes some milliseconds whatever happens, then completes: the zombie, if it is longer than the lease.
    Ignore(u64),
    /// Fails.
    Fail,
    /// Fails, and chooses when to come back.
    FailFor(u64),
    /// Fails for good.
    Fatal,
    /// Panics.
    Panic,
    /// Never returns; the timeout ends it.
    Hang,
    /// Comes back later at no cost.
    Snooze(u64),
}

impl Script {
    /// What the attempt of claim number `claims` (from one) does.
    pub fn act(&self, claims: u32) -> Act {
        let index = usize::try_from(claims.saturating_sub(1)).unwrap_or(usize::MAX);
        self.0.get(index).copied().unwrap_or(Act::Work)
    }
}

/// How a processor starts the chains that its continuation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// On a connection of their own.
    Plain,
    /// In the transaction of the attempt.
    Within,
    /// In `prepare`, with their ids stored, so that a later attempt finds them.
    Prepared,
}

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "the fields are what the functions of this module compute with")]
        pub struct $name { $(pub $field: $type,)* pub script: Script }
    )+};
}

inputs! {
    /// A chain of one job.
    Leaf { value: u64 }
    /// A loop that branches.
    Walk { steps: u8, acc: u64, transactional: bool, children: u8, mode: Mode, key: Option<String> }
    /// The branch: goes back into the loop, or on to a fan-in of chains that it starts.
    Turn { steps: u8, acc: u64, children: u8, mode: Mode, key: Option<String> }
    /// A continuation with any number of blockers.
    Gather { acc: u64 }
    /// Waits for one chain.
    After { base: u64, transactional: bool }
    /// Waits for two of different types.
    Pair { base: u64, transactional: bool }
    /// Waits for any number, perhaps the same one twice.
    Merge { base: u64, transactional: bool }
    /// Moves money.
    Transfer { from: u8, to: u8, amount: i64, savepoint: bool }
    /// Is completed from outside, or gives up.
    Approval { patience: u8 }
    /// Starts a noose that waits for the knot's own chain, then tries to wait for that: refused.
    Knot { value: u64 }
    /// Waits for a knot.
    Noose { base: u64 }
    /// Where the knot would be tied.
    Tied { value: u64 }
    /// Starts its own successor under its own key.
    Heir { generation: u8, key: String }
}

/// All of them.
#[derive(Debug, queuert::JobTypes)]
#[expect(missing_docs, reason = "the inputs say what they are")]
pub enum Jobs {
    #[job(entry, output = u64)]
    Leaf(Leaf),
    #[job(entry, continues = [Walk, Turn], output = u64)]
    Walk(Walk),
    #[job(continues = [Walk, Gather])]
    Turn(Turn),
    #[job(output = u64, blockers = [Leaf])]
    Gather(Gather),
    #[job(entry, output = u64, blockers = Leaf)]
    After(After),
    #[job(entry, output = u64, blockers = (Leaf, Walk), priority = 2)]
    Pair(Pair),
    #[job(entry, output = u64, blockers = [Leaf])]
    Merge(Merge),
    #[job(entry, output = i64)]
    Transfer(Transfer),
    #[job(entry, output = bool)]
    Approval(Approval),
    #[job(entry, continues = [Tied], output = u64, retry(max_attempts = 2, initial = "300ms", maximum = "5s"))]
    Knot(Knot),
    #[job(entry, output = u64, blockers = Knot)]
    Noose(Noose),
    #[job(output = u64, blockers = [Noose])]
    Tied(Tied),
    #[job(entry, output = u8, priority = -1)]
    Heir(Heir),
}

/// The output of a leaf.
pub fn leaf(value: u64) -> u64 {
    value.wrapping_mul(3).wrapping_add(1)
}

/// The output of a job that adds up what it waited for; the order counts.
pub fn gather(base: u64, blockers: &[u64]) -> u64 {
    blockers
        .iter()
        .fold(base, |sum, output| sum.wrapping_mul(31).wrapping_add(*output))
}

/// Where a walk goes.
#[derive(Debug)]
pub enum Way {
    /// It ends.
    End(u64),
    /// Around the loop.
    Walk(Walk),
    /// Off to the branch.
    Turn(Turn),
    /// On to the fan-in.
    Gather(Gather),
}

fn mixed(acc: u64) -> u64 {
    acc.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) ^ 0x5EED
}

/// Where a walk goes next.
pub fn after_walk(job: &Walk) -> Way {
    let acc = mixed(job.acc);
    match job.steps {
        0 if job.children == 0 => Way::End(acc),
        0 => Way::Turn(Turn {
            steps: 0,
            acc,
            children: job.children,
            mode: job.mode,
            key: job.key.clone(),
            script: job.script.clone(),
        }),
        steps if steps % 3 == 0 => Way::Turn(Turn {
            steps: steps - 1,
            acc,
            children: job.children,
            mode: job.mode,
            key: job.key.clone(),
            script: Script::default(),
        }),
        steps => Way::Walk(Walk {
            steps: steps - 1,
            acc,
            script: Script::default(),
            ..job.clone()
        }),
    }
}

/// Where a turn goes next.
pub fn after_turn(job: &Turn) -> Way {
    let acc = mixed(job.acc ^ 1);
    match job.steps {
        0 => Way::Gather(Gather {
            acc,
            script: job.script.clone(),
        }),
        steps => Way::Walk(Walk {
            steps: steps - 1,
            acc,
            transactional: job.mode == Mode::Within,
            children: job.children,
            mode: job.mode,
            key: job.key.clone(),
            script: job.script.clone(),
        }),
    }
}

/// How an attempt that works ends its job.
#[derive(Debug, PartialEq, Eq)]
pub enum Expected {
    /// With this output.
    Finish(Payload),
    /// With a next job of this type and input.
    Continue(&'static str, Payload),
}

/// How an attempt of a job of this type and input ends it, given the outputs of its blockers.
pub fn expected(type_name: &str, input: &Payload, blockers: &[u64]) -> Option<Expected> {
    fn read<J: JobType>((type_name, input): (&str, &Payload)) -> Option<J> {
        (type_name == J::NAME).then(|| J::decode(input).ok()).flatten()
    }
    fn finish<T: Serialize>(output: T) -> Option<Expected> {
        Payload::encode(&output).ok().map(Expected::Finish)
    }
    fn go<J: JobType>(next: &J) -> Option<Expected> {
        next.encode().ok().map(|input| Expected::Continue(J::NAME, input))
    }
    fn way(way: Way) -> Option<Expected> {
        match way {
            Way::End(output) => finish(output),
            Way::Walk(next) => go(&next),
            Way::Turn(next) => go(&next),
            Way::Gather(next) => go(&next),
        }
    }
    let job = (type_name, input);
    if let Some(input) = read::<Leaf>(job) {
        return finish(leaf(input.value));
    }
    if let Some(input) = read::<Walk>(job) {
        return way(after_walk(&input));
    }
    if let Some(input) = read::<Turn>(job) {
        return way(after_turn(&input));
    }
    if let Some(input) = read::<Gather>(job) {
        return finish(gather(input.acc, blockers));
    }
    if let Some(input) = read::<After>(job) {
        return finish(gather(input.base, blockers));
    }
    if let Some(input) = read::<Pair>(job) {
        return finish(gather(input.base, blockers));
    }
    if let Some(input) = read::<Merge>(job) {
        return finish(gather(input.base, blockers));
    }
    if let Some(input) = read::<Noose>(job) {
        return finish(gather(input.base, blockers));
    }
    if let Some(input) = read::<Transfer>(job) {
        return finish(input.amount);
    }
    if read::<Approval>(job).is_some() {
        return finish(false);
    }
    if let Some(input) = read::<Heir>(job) {
        return finish(input.generation);
    }
    None
}
