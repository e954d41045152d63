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

// The bounds of `Attempt::continue_with`.
struct Attempt<J>(J);
impl<J: JobType> Attempt<J> {
    fn continue_with<N: IntoStep>(self, _: N)
    where
        N::Job: ContinuationOf<J>,
    {
    }
}

fn process(job: Attempt<SendWelcome>) {
    job.continue_with(SendWelcome);
}

fn main() {}
