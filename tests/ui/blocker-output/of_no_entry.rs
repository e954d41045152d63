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

// What `attempt.blockers()` and `attempt.outputs_of::<A>()` return, for an attempt of a `J`.
fn blockers<J: JobType>(_: J) -> <J::Blockers as BlockerSpec>::Outputs {
    unimplemented!()
}
fn outputs_of<A: BlockerOf<J>, J: JobType>(_: J) -> Vec<A::Output> {
    unimplemented!()
}

fn main() {
    outputs_of::<SendWelcome, _>(SyncCrm);
}
