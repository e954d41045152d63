use queuert::{Entry, IntoStep, JobTypes};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SendMail;

#[derive(Serialize, Deserialize)]
struct Send<T>(T);

#[derive(JobTypes)]
enum Onboarding<T> {
    #[job(entry, output = ())]
    SendMail(SendMail),
    #[job(entry, output = ())]
    Send(Send<T>),
}

// The bounds of `client.start(..)`.
fn start<T: IntoStep>(_: T)
where
    T::Job: Entry,
{
}

// Not reported again here.
fn main() {
    start(SendMail);
}
