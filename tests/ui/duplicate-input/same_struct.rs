use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SendMail;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = ())]
    SendMail(SendMail),
    #[job(entry, output = ())]
    SendMailAgain(SendMail),
}

fn main() {}
