use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Poll;
#[derive(Serialize, Deserialize)]
struct Done;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [Poll])]
    Poll(Poll),
    #[job(entry, output = ())]
    Done(Done),
}

fn main() {}
