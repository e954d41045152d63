use queuert::{ContinuationOf, IntoStep, JobType, JobTypes};
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

// The bounds of `attempt.continue_with(..)`, for an attempt of a `J`.
fn continue_with<J: JobType, N: IntoStep>(_: J, _: N)
where
    N::Job: ContinuationOf<J>,
{
}

fn main() {
    continue_with(SyncCrm, SendWelcome);
}
