use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobTypes)]
struct SendMail {
    user: u64,
}

fn main() {}
