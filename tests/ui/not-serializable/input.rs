use queuert::{Entry, IntoStep, JobTypes};
use serde::Serialize;

struct Provision;

#[derive(Serialize)]
struct SendWelcome;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcome])]
    Provision(Provision),
    #[job(output = ())]
    SendWelcome(SendWelcome),
}

// The bounds of `client.start(..)`.
fn start<T: IntoStep>(_: T)
where
    T::Job: Entry,
{
}

fn main() {
    start(Provision);
}
