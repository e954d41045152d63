use queuert::{JobType, JobTypes, OutputOf};
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

// The bounds of `attempt.finish(..)`, for an attempt of a `J`.
fn finish<J: JobType, O: OutputOf<J>>(_: J, _: O) {}

fn main() {
    finish(SyncCrm, ());
}
