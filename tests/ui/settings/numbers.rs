use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct A;
#[derive(Serialize, Deserialize)]
struct B;
#[derive(Serialize, Deserialize)]
struct C;
#[derive(Serialize, Deserialize)]
struct D;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = (), retry(max_attempts = 0, multiplier = 0.5, jitter = 1.0))]
    A(A),
    #[job(entry, output = (), retry(max_attempts = -1, multiplier = "2"))]
    B(B),
    #[job(entry, output = (), priority = 40000)]
    C(C),
    #[job(entry, output = (), priority = 1.5, retry = 5)]
    D(D),
}

fn main() {}
