use queuert::{BlockerOf, BlockerSpec, JobType, JobTypes};
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
    #[job(entry, output = u64)]
    Charge(Charge),
    #[job(entry, output = String)]
    Refund(Refund),
    #[job(entry, output = ())]
    Notify(Notify),
    #[job(entry, blockers = Charge, output = ())]
    Ship(Ship),
    #[job(entry, blockers = (Charge, Refund), output = ())]
    Balance(Balance),
    #[job(entry, blockers = [Charge], output = ())]
    Audit(Audit),
}

// What `attempt.blockers()` and `attempt.outputs_of::<A>()` return, for an attempt of a `J`.
fn blockers<J: JobType>(_: J) -> <J::Blockers as BlockerSpec>::Outputs {
    unimplemented!()
}
fn outputs_of<A: BlockerOf<J>, J: JobType>(_: J) -> Vec<A::Output> {
    unimplemented!()
}

fn main() {
    let charged: String = blockers(Ship);
    let (charged, refunded): (u64, u64) = blockers(Balance);
    let charged: Vec<String> = outputs_of::<Charge, _>(Audit);
}
