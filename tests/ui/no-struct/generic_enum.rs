use queuert::memory::MemoryState;
use queuert::{Client, Error, JobTypes};
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

// Not reported again here.
async fn sign_up(client: &Client<MemoryState>) -> Result<(), Error> {
    client.start(SendMail).await?;
    Ok(())
}

fn main() {}
