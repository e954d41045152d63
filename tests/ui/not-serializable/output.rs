use queuert::memory::{Attempt, JobResult};
use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Provision;

struct Account;

#[derive(Deserialize)]
struct Refusal;

#[derive(Serialize, Deserialize)]
struct Refuse;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = Account, continues = [Refuse])]
    Provision(Provision),
    #[job(output = Refusal)]
    Refuse(Refuse),
}

async fn provision(job: Attempt<Provision>) -> JobResult {
    job.finish(Account)
}

fn main() {}
