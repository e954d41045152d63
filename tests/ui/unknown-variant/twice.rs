use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Provision;
#[derive(Serialize, Deserialize)]
struct SendWelcome;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcome, SendWelcome])]
    Provision(Provision),
    #[job(output = ())]
    SendWelcome(SendWelcome),
}

fn main() {}
