use queuert::memory::{Attempt, JobResult, MemoryState};
use queuert::{ChainRef, Client, Error, JobType as _, JobTypes};
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
#[derive(Serialize, Deserialize)]
struct AfterNothing;

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
    #[job(entry, output = (), blockers = [Nothing])]
    AfterNothing(AfterNothing),
}

// Nothing below is reported on top.
async fn sign_up(client: &Client<MemoryState>) -> Result<(), Error> {
    client.start(Provision).await?;
    client.start(Lost).await?;
    client.start(Report).await?;
    Ok(())
}

async fn provision(job: Attempt<Provision>, chain: ChainRef<Provision>) -> JobResult {
    job.continue_with(Report.blocked_by(chain))
}

fn main() {}
