use queuert::{JobType as _, JobTypes};
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

fn main() {
    let _ = Ship.blocked_by(Charge);
    let _ = Ship.blocked_by("0190b5a0-0000-7000-8000-000000000000");
}
