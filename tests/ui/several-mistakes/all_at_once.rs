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
    #[job(entry, blockers = (Provision))]
    Report(Report),
    #[job(output = ())]
    Lost(Lost),
    #[job(entry, output = (), blockers = SendWelcome)]
    Nothing,
}

// The bounds of `client.start(..)`.
fn start<T: IntoStep>(_: T)
where
    T::Job: Entry,
{
}

// The bounds of `Attempt::continue_with`.
struct Attempt<J>(J);
impl<J: JobType> Attempt<J> {
    fn continue_with<N: IntoStep>(self, _: N)
    where
        N::Job: ContinuationOf<J>,
    {
    }
}

// Nothing below is reported on top.
fn main() {
    start(Provision);
    start(Lost);
    start(Report);
}

fn process(job: Attempt<Provision>, chain: ChainRef<Provision>) {
    job.continue_with(Report.blocked_by(chain));
}
