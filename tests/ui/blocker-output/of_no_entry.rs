use queuert::JobTypes;
use queuert::memory::Attempt;
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
    #[job(output = CrmRecord, blockers = ProvisionAccount)]
    SyncCrm(SyncCrm),
}

fn sync(job: Attempt<SyncCrm>) {
    job.outputs_of::<SendWelcome>();
}

fn main() {}
