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

// The bounds of `Attempt::finish`.
struct Attempt<J>(J);
impl<J: JobType> Attempt<J> {
    fn finish<O: OutputOf<J>>(self, _: O) {}
}

fn process(job: Attempt<SyncCrm>) {
    job.finish(());
}

fn main() {}
