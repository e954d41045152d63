use queuert::{BlockerOf, BlockerSpec, JobType, JobTypes};
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

// The signatures of `Attempt::blockers` and `Attempt::outputs_of`.
struct Attempt<J>(J);
impl<J: JobType> Attempt<J> {
    fn blockers(&self) -> &<J::Blockers as BlockerSpec>::Outputs {
        unimplemented!()
    }

    fn outputs_of<A: BlockerOf<J>>(&self) -> Vec<&A::Output> {
        unimplemented!()
    }
}

fn sync(job: Attempt<SyncCrm>) {
    job.outputs_of::<SendWelcome>();
}

fn main() {}
