use queuert::memory::MemoryState;
use queuert::{Client, Error, JobTypes};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch {
    url: String,
}
#[derive(Serialize, Deserialize)]
struct Store {
    body: String,
}

#[derive(JobTypes)]
enum Import {
    #[job(entry, continues = [Store])]
    Fetch(Fetch),
    #[job(output = u64)]
    Store(Store),
}

/// Stands for a transaction that your database library opened.
struct Transaction;

async fn start(client: &Client<MemoryState>, tx: &mut Transaction) -> Result<(), Error> {
    client.start(Fetch { url: "it".into() }).within(tx).await?;
    Ok(())
}

fn main() {}
