use queuert::memory::{Attempt, JobResult, MemoryState};
use queuert::{Client, Error, JobTypes};
use serde::Serialize;

struct Provision;

#[derive(Serialize)]
struct SendWelcome;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcome])]
    Provision(Provision),
    #[job(output = ())]
    SendWelcome(SendWelcome),
}

async fn sign_up(client: &Client<MemoryState>) -> Result<(), Error> {
    client.start(Provision).await?;
    Ok(())
}

async fn provision(job: Attempt<Provision>) -> JobResult {
    job.continue_with(SendWelcome)
}

fn main() {}
