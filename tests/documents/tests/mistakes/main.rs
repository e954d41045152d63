//! The mistakes of `docs/mistakes.md`, made for real: what is said is what the document quotes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chains;
mod compiler;
mod document;
mod processors;
mod stores;

use queuert::JobTypes;
use queuert::memory::MemoryState;
use serde::{Deserialize, Serialize};

type Client = queuert::Client<MemoryState>;

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
    #[job(output = usize)]
    Store(Store),
}

fn fetch() -> Fetch {
    Fetch { url: "it".into() }
}

fn client() -> Client {
    Client::new(MemoryState::new())
}
