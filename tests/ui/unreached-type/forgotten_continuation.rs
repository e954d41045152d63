use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Begin;
#[derive(Serialize, Deserialize)]
struct Middle;
#[derive(Serialize, Deserialize)]
struct Done;
#[derive(Serialize, Deserialize)]
struct Other;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = ())]
    Begin(Begin),
    #[job(continues = [Done])]
    Middle(Middle),
    #[job(output = ())]
    Done(Done),
    #[job(output = ())]
    Other(Other),
}

fn main() {}
