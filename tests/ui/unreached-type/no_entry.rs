use queuert::memory::MemoryState;
use queuert::{Client, Error, JobTypes};
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

// Not reported again here.
async fn sign_up(client: &Client<MemoryState>) -> Result<(), Error> {
    client.start(Begin).await?;
    Ok(())
}

fn main() {}
