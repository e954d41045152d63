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
#[derive(Serialize, Deserialize)]
struct F;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = (), timeout = "30")]
    A(A),
    #[job(entry, output = (), timeout = 30)]
    B(B),
    #[job(entry, output = (), timeout = "0s")]
    C(C),
    #[job(entry, output = (), lease = "1ms")]
    D(D),
    #[job(entry, output = (), lease(duration = "10s", renew_every = "10s"))]
    E(E),
    #[job(entry, output = (), retry(initial = "10m"), lease = "100000d")]
    F(F),
}

fn main() {}
