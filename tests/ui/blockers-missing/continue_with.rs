use queuert::memory::{Attempt, JobResult};
use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Charge;
#[derive(Serialize, Deserialize)]
struct Refund;
#[derive(Serialize, Deserialize)]
struct Notify;
#[derive(Serialize, Deserialize)]
struct Ship;
#[derive(Serialize, Deserialize)]
struct Balance;
#[derive(Serialize, Deserialize)]
struct Audit;

#[derive(JobTypes)]
enum Orders {
    #[job(entry, output = u64, continues = [Ship])]
    Charge(Charge),
    #[job(entry, output = String)]
    Refund(Refund),
    #[job(entry, output = ())]
    Notify(Notify),
    #[job(blockers = Refund, output = u64)]
    Ship(Ship),
    #[job(entry, blockers = (Charge, Refund), output = ())]
    Balance(Balance),
    #[job(entry, blockers = [Charge], output = ())]
    Audit(Audit),
}

async fn charge(job: Attempt<Charge>) -> JobResult {
    job.continue_with(Ship)
}

fn main() {}
