use std::rc::Rc;

use queuert::memory::{Attempt, JobResult, MemoryState};
use queuert::{JobTypes, Processor};
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

// A closure that captures it is refused in the same words, but its name has a path in it.
struct WithCache {
    cache: Rc<String>,
}

impl Processor<SyncCrm, MemoryState> for WithCache {
    async fn process(&self, job: Attempt<SyncCrm>) -> JobResult {
        println!("{}", self.cache);
        job.finish(CrmRecord)
    }
}

fn main() {}
