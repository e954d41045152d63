//! Anybody may write to a channel of Postgres.

use std::time::Duration;

use queuert::{Attempt, Client, JobTypes};
use queuert_fuzzing::{Stores, fuzz, lines, text};
use queuert_postgres::{PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};

const CORPUS: &str = include_str!("../../../../adapters/postgres/tests/corpus/notifications.txt");
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/notifications.txt");

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    n: u32,
}

#[derive(JobTypes)]
enum Tasks {
    #[job(entry, output = u32)]
    Task(Task),
}

/// Workers that poll every ten minutes go on hearing what concerns them, whatever else is said.
#[test]
fn a_listener_survives_whatever_is_said() {
    let stores = Stores::open();
    let state = &stores.postgres;
    // Announcements are all that wakes the workers.
    let never = Duration::from_secs(3_600);
    let notify = || PostgresNotify::options().look_interval(never).build(state);
    let (workers, client) = stores.runtime.block_on(async {
        let listening = Client::builder(state.clone()).notify(notify()).build();
        let workers = listening
            .worker()
            .process(|job: Attempt<Task, PostgresState>| async move { job.finish(job.n) })
            .poll_interval(Duration::from_secs(600))
            .start()
            .await
            .expect("the workers start");
        // Another process, as far as hints go.
        (workers, Client::builder(state.clone()).notify(notify()).build())
    });
    let say = |text: &str| {
        stores.runtime.block_on(async {
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(format!("queuert:{}", state.schema()))
                .bind(text)
                .execute(state.pool())
                .await
                .expect("it can be said");
        });
    };
    let works = |n: u32| {
        let output = stores.runtime.block_on(async {
            let chain = client.start(Task { n }).await.expect("the chain starts");
            client.wait(&chain).timeout(Duration::from_secs(60)).await
        });
        assert_eq!(output.expect("somebody heard of it"), n);
    };
    works(0);
    let sayable = |text: &str| !text.contains('\0') && text.len() < 8_000;
    for line in lines(CORPUS).iter().filter(|line| sayable(line)) {
        say(line);
    }
    works(1);
    fuzz(REGRESSIONS, 300, &text(CORPUS), |text| {
        if sayable(&text) {
            say(&text);
        }
    });
    works(2);
    stores.runtime.block_on(workers.stop());
}
