use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Begin;
#[derive(Serialize, Deserialize)]
struct Ping;
#[derive(Serialize, Deserialize)]
struct Pong;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [Ping])]
    Begin(Begin),
    #[job(continues = [Pong])]
    Ping(Ping),
    #[job(continues = [Ping])]
    Pong(Pong),
}

fn main() {}
