use std::rc::Rc;

use queuert::memory::{Attempt, JobResult, MemoryState};
use queuert::{Client, JobTypes};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct ProvisionAccount;
#[derive(Serialize, Deserialize)]
struct SendWelcome;
#[derive(Serialize, Deserialize)]
struct SyncCrm;
#[derive(Serialize, Deserialize)]
struct CrmRecord;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcome])]
    ProvisionAccount(ProvisionAccount),
    #[job(continues = [ProvisionAccount, SyncCrm])]
    SendWelcome(SendWelcome),
    #[job(output = CrmRecord)]
    SyncCrm(SyncCrm),
}

async fn sync(job: Attempt<SyncCrm>) -> JobResult {
    let count = Rc::new(7);
    let tx = job.begin().await?;
    println!("{count}");
    tx.finish(CrmRecord).await
}

fn work(client: &Client<MemoryState>) {
    client.worker().process(sync);
}

fn main() {}
