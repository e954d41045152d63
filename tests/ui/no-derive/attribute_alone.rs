use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch {
    url: String,
}

enum Import {
    #[job(entry, output = u64)]
    Fetch(Fetch),
}

fn main() {}
