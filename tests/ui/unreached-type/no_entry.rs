use queuert::{Entry, IntoStep, JobTypes};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Begin;
#[derive(Serialize, Deserialize)]
struct Done;

#[derive(JobTypes)]
enum Onboarding {
    #[job(continues = [Done])]
    Begin(Begin),
    #[job(output = ())]
    Done(Done),
}

// The bounds of `client.start(..)`.
fn start<T: IntoStep>(_: T)
where
    T::Job: Entry,
{
}

// Not reported again here.
fn main() {
    start(Begin);
}
