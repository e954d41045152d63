use queuert::JobTypes;
use queuert::memory::Attempt;
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

fn ship(job: Attempt<Ship>) {
    let _charged: &String = job.blockers();
}

fn balance(job: Attempt<Balance>) {
    let (_charged, _refunded): &(u64, u64) = job.blockers();
}

fn audit(job: Attempt<Audit>) {
    let _charged: Vec<&String> = job.outputs_of::<Charge>();
}

fn main() {}
