use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Begin;
#[derive(Serialize, Deserialize)]
struct Poll;
#[derive(Serialize, Deserialize)]
struct Done;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [Poll, Done])]
    Begin(Begin),
    #[job(continues = [Poll])]
    Poll(Poll),
    #[job(output = ())]
    Done(Done),
}

fn main() {}
