use queuert::{ChainRef, ContinuationOf, Entry, IntoStep, JobType, JobTypes};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Provision;
#[derive(Serialize, Deserialize)]
struct SendWelcome;
#[derive(Serialize, Deserialize)]
struct SyncCrm;
#[derive(Serialize, Deserialize)]
struct Report;
#[derive(Serialize, Deserialize)]
struct Ping;
#[derive(Serialize, Deserialize)]
struct Lost;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcom])]
    Provision(Provision),
    #[job(output = (), name = "provision")]
    SendWelcome(SendWelcome),
    #[job(entry, timeout = "soon", continues = [Ping])]
    SyncCrm(SyncCrm),
    #[job(continues = [Ping])]
    Ping(Ping),
    #[job(entry, blockers = SendWelcome)]
    Report(Report),
    #[job(output = ())]
    Lost(Lost),
    #[job(entry, output = ())]
    Nothing,
}

// The bounds of `client.start(..)`.
fn start<T: IntoStep>(_: T)
where
    T::Job: Entry,
{
}

// The bounds of `attempt.continue_with(..)`, for an attempt of a `J`.
fn continue_with<J: JobType, N: IntoStep>(_: J, _: N)
where
    N::Job: ContinuationOf<J>,
{
}

// None of these is reported on top.
fn main() {
    start(Provision);
    start(Lost);
    continue_with(Provision, SendWelcome);
    let chain: ChainRef<Provision>;
}
