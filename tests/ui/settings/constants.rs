use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct A;
#[derive(Serialize, Deserialize)]
struct B;
#[derive(Serialize, Deserialize)]
struct C;

const NONE: u32 = 0;
const SECONDS: u64 = 30;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = (), retry(max_attempts = NONE))]
    A(A),
    #[job(entry, output = (), timeout = SECONDS)]
    B(B),
    #[job(entry, output = (), retry(max_attempts = MISSING))]
    C(C),
}

fn main() {}
