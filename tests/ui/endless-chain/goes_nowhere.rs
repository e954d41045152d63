use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Begin;
#[derive(Serialize, Deserialize)]
struct Stuck;
#[derive(Serialize, Deserialize)]
struct Alone;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [Stuck])]
    Begin(Begin),
    Stuck(Stuck),
    #[job(entry)]
    Alone(Alone),
}

fn main() {}
