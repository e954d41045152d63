use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Fetch;
#[derive(Serialize, Deserialize)]
pub struct Store;

// Its chain gives a generated enum, which is as private as this one.
#[derive(JobTypes)]
enum Import {
    #[job(entry, continues = [Store], output = u8)]
    Fetch(Fetch),
    #[job(output = bool)]
    Store(Store),
}

fn main() {}
