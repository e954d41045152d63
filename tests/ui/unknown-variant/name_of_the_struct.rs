use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct ProvisionInput;
#[derive(Serialize, Deserialize)]
struct SendWelcomeInput;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcomeInput, Onboarding::Provision])]
    Provision(ProvisionInput),
    #[job(output = ())]
    SendWelcome(SendWelcomeInput),
}

fn main() {}
