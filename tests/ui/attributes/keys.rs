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
#[derive(Serialize, Deserialize)]
struct E;

#[derive(JobTypes)]
#[job(entry)]
enum Onboarding {
    #[job(entry, output = (), retries(max_attempts = 5), timeout = "5s")]
    A(A),
    #[job(entry, output = (), schedule = "daily", priority = 1, priority = 2)]
    B(B),
    #[job(entry = true, output = ())]
    #[job(retry(attempts = 3))]
    C(C),
    #[job(entry, continues = A)]
    D(D),
    #[job]
    #[job(entry, output = ())]
    E(#[job(name = "e")] E),
}

fn main() {}
