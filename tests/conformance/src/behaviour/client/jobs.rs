//! The job types of the cases, and workers that process them.

use std::collections::BTreeMap;
use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{Client, Drained, JobError, JobTypes, LeaseSettings, WorkerBuilder};
use serde::{Deserialize, Serialize};

/// Finishes with a greeting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Greet {
    pub(crate) name: String,
}

/// Finishes with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) number: u32,
}

/// Dies at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fail {
    pub(crate) because: String,
}

/// Chains of one job.
#[derive(Debug, JobTypes)]
pub(crate) enum Errands {
    #[job(entry, output = String)]
    Greet(Greet),
    #[job(entry, output = u32, priority = -5)]
    Count(Count),
    #[job(entry, output = ())]
    Fail(Fail),
}

/// The first of three steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct First {
    pub(crate) number: u32,
}

/// The second of three steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Second {
    pub(crate) number: u32,
}

/// The last of three steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Third {
    pub(crate) number: u32,
}

/// A chain of three jobs: each adds one.
#[derive(Debug, JobTypes)]
pub(crate) enum Linear {
    #[job(entry, continues = [Second])]
    First(First),
    #[job(continues = [Third])]
    Second(Second),
    #[job(output = u32)]
    Third(Third),
}

/// Goes one way or the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Decide {
    pub(crate) amount: u32,
}

/// One way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Accept;

/// The other way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reject {
    pub(crate) reason: String,
}

/// A chain with two ends of different types.
#[derive(Debug, JobTypes)]
pub(crate) enum Branching {
    #[job(entry, continues = [Accept, Reject])]
    Decide(Decide),
    #[job(output = bool)]
    Accept(Accept),
    #[job(output = String)]
    Reject(Reject),
}

/// Goes round until nothing is left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) left: u32,
}

/// A chain that continues with itself.
#[derive(Debug, JobTypes)]
pub(crate) enum Looping {
    #[job(entry, continues = [Round], output = u32)]
    Round(Round),
}

/// Waits for one chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AfterOne;

/// Waits for two chains of different types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AfterBoth;

/// Waits for any number of chains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AfterAll;

/// Waits for a chain that itself waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AfterAfter;

/// Continues with a job that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Early;

/// A continuation that waits for a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Late;

/// Waits for a chain that may, wrongly, wait for it in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Knot;

/// Blockers of each kind, all of them of another enum.
#[derive(Debug, JobTypes)]
pub(crate) enum Waiting {
    #[job(entry, blockers = Greet, output = String)]
    AfterOne(AfterOne),
    #[job(entry, blockers = (Greet, Count), output = String)]
    AfterBoth(AfterBoth),
    #[job(entry, blockers = [Greet], output = Vec<String>)]
    AfterAll(AfterAll),
    #[job(entry, blockers = [AfterOne], output = usize)]
    AfterAfter(AfterAfter),
    #[job(entry, continues = [Late])]
    Early(Early),
    #[job(blockers = [Knot], output = ())]
    Late(Late),
    #[job(entry, blockers = [Early], output = ())]
    Knot(Knot),
}

/// Completed by a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AwaitApproval {
    pub(crate) order: u64,
}

/// What a worker does after the approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ship {
    pub(crate) order: u64,
    pub(crate) approved_by: String,
}

/// A chain that begins with something that no worker does.
#[derive(Debug, JobTypes)]
pub(crate) enum Approval {
    #[job(entry, continues = [Ship])]
    AwaitApproval(AwaitApproval),
    #[job(output = String)]
    Ship(Ship),
}

/// Cannot be written as JSON when it is not empty: its keys are not strings.
pub(crate) type Odd = BTreeMap<(u8, u8), u8>;

/// An input that JSON may not be able to hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Puzzle {
    pub(crate) odd: Odd,
}

/// Inputs and outputs that JSON may not be able to hold.
#[derive(Debug, JobTypes)]
pub(crate) enum Puzzles {
    #[job(entry, continues = [Puzzle], output = Odd)]
    Puzzle(Puzzle),
}

pub(crate) fn odd() -> Odd {
    BTreeMap::from([((1, 2), 3)])
}

pub(crate) fn greet(name: &str) -> Greet {
    Greet { name: name.to_owned() }
}

/// How often the workers and waits of the cases look: they must not depend on being woken.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Settings with which an attempt soon finds out that its job is lost, also without being told.
pub(crate) fn hasty<S: StateAdapter>(client: &Client<S>) -> WorkerBuilder<S> {
    let lease = LeaseSettings::new(Duration::from_secs(2)).renew_every(Duration::from_millis(50));
    client.worker().poll_interval(POLL).lease(lease)
}

/// Workers for all job types but those that wait for a person.
pub(crate) fn crew<S: StateAdapter>(client: &Client<S>) -> WorkerBuilder<S> {
    hasty(client)
        .process_all::<Errands, _, _>(|job| async move {
            match job {
                ErrandsAttempt::Greet(job) => {
                    let greeting = greeting(&job.name);
                    job.finish(greeting)
                }
                ErrandsAttempt::Count(job) => job.finish(job.number),
                ErrandsAttempt::Fail(job) => Err(JobError::fatal(job.because.clone())),
            }
        })
        .process_all::<Linear, _, _>(|job| async move {
            match job {
                LinearAttempt::First(job) => {
                    let number = job.number + 1;
                    job.continue_with(Second { number })
                }
                LinearAttempt::Second(job) => {
                    let number = job.number + 1;
                    job.continue_with(Third { number })
                }
                LinearAttempt::Third(job) => job.finish(job.number),
            }
        })
        .process_all::<Branching, _, _>(|job| async move {
            match job {
                BranchingAttempt::Decide(job) if job.amount < 100 => job.continue_with(Accept),
                BranchingAttempt::Decide(job) => {
                    let reason = format!("{} is too much", job.amount);
                    job.continue_with(Reject { reason })
                }
                BranchingAttempt::Accept(job) => job.finish(true),
                BranchingAttempt::Reject(job) => {
                    let reason = job.reason.clone();
                    job.finish(reason)
                }
            }
        })
        .process_all::<Looping, _, _>(|LoopingAttempt::Round(job)| async move {
            match job.left.checked_sub(1) {
                Some(left) => job.continue_with(Round { left }),
                None => {
                    let rounds = job.record().chain_index;
                    job.finish(rounds)
                }
            }
        })
        .process_all::<Waiting, _, _>(|job| async move {
            match job {
                WaitingAttempt::AfterOne(job) => {
                    let greeting = job.blockers().clone();
                    job.finish(greeting)
                }
                WaitingAttempt::AfterBoth(job) => {
                    let (greeting, number) = job.blockers();
                    let both = format!("{greeting} {number}");
                    job.finish(both)
                }
                WaitingAttempt::AfterAll(job) => {
                    let greetings = job.blockers().clone();
                    job.finish(greetings)
                }
                WaitingAttempt::AfterAfter(job) => {
                    let waited_for = job.blockers().len();
                    job.finish(waited_for)
                }
                WaitingAttempt::Early(job) => job.continue_with(queuert::JobType::blocked_by(Late, NO_KNOTS)),
                WaitingAttempt::Late(job) => job.finish(()),
                WaitingAttempt::Knot(job) => job.finish(()),
            }
        })
        .process(|job: queuert::Attempt<Ship, S>| async move {
            let shipped = format!("order {} approved by {}", job.order, job.approved_by);
            job.finish(shipped)
        })
}

/// A job that may wait for any number of chains waits for none.
pub(crate) const NO_KNOTS: [queuert::ChainRef<Knot>; 0] = [];

pub(crate) fn greeting(name: &str) -> String {
    format!("Hello, {name}!")
}

/// Runs everything that is due.
pub(crate) async fn run_all<S: StateAdapter>(client: &Client<S>) -> Drained {
    crew(client)
        .drain()
        .await
        .expect("the crew can be set up and the store answers")
}
