//! Testing: the code under test comes first, its tests are at the end of this file. They need no server and no sleep, but
//! a store in memory, a clock that the test moves, `drain`, which runs the due jobs, and assertions on the started chains.
//!
//! ```sh
//! cargo test -p patterns --bin testing
//! ```
//!
//! `cargo run -p patterns --bin testing` is the program itself. It prints:
//!
//! ```text
//! to user 7: welcome
//! A reminder for user 7 is due in 7 days.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{Attempt, ChainRef, Client, Error, JobResult, JobStatus, JobTypes, Step, WorkerBuilder};
use queuert_sqlite::SqliteState;
use serde::{Deserialize, Serialize};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

#[derive(Serialize, Deserialize)]
struct Welcome {
    user: u32,
}

#[derive(Serialize, Deserialize)]
struct Remind {
    user: u32,
}

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [Remind])]
    Welcome(Welcome),
    #[job(output = (), retry(max_attempts = 2, initial = "1m"))]
    Remind(Remind),
}

/// The code under test works on every store: that of the program, and that of the tests.
async fn sign_up<S: StateAdapter>(client: &Client<S>, user: u32) -> Result<ChainRef<Welcome>, Error> {
    Ok(client.start(Welcome { user }).await?.chain())
}

async fn welcome<S: StateAdapter>(job: Attempt<Welcome, S>) -> JobResult<S> {
    let user = job.user;
    job.get::<Mailer>()?.send(user, "welcome")?;
    job.continue_with(Step::new(Remind { user }).delay(WEEK))
}

async fn remind<S: StateAdapter>(job: Attempt<Remind, S>) -> JobResult<S> {
    job.get::<Mailer>()?.send(job.user, "come back")?;
    job.finish(())
}

fn worker<S: StateAdapter>(client: &Client<S>, mailer: &Mailer) -> WorkerBuilder<S> {
    client.worker().process(welcome).process(remind).provide(mailer.clone())
}

/// Where mails go.
#[derive(Clone, Default)]
struct Mailer(Arc<Mutex<Outbox>>);

#[derive(Default)]
struct Outbox {
    mails: Vec<String>,
    is_down: bool,
}

impl Mailer {
    fn send(&self, user: u32, text: &str) -> Result<(), std::io::Error> {
        let mut outbox = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if outbox.is_down {
            return Err(std::io::Error::other("the mail server is down"));
        }
        outbox.mails.push(format!("to user {user}: {text}"));
        Ok(())
    }

    fn mails(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).mails.clone()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let mailer = Mailer::default();
    let chain = sign_up(&client, 7).await?;
    worker(&client, &mailer).drain().await?; // a service would `start` it
    for mail in mailer.mails() {
        println!("{mail}");
    }
    let jobs = client.list_chain_jobs(chain).statuses([JobStatus::Pending]).await?;
    for job in jobs.items {
        let days = job.scheduled_at.saturating_duration_since(job.created_at).as_secs() / 86_400;
        println!(
            "A reminder for user {} is due in {days} days.",
            job.typed::<Remind>()?.input.user
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use queuert::memory::{MemoryClock, MemoryState};
    use queuert::{Event, Timestamp, testing};

    use super::*;

    /// A store whose time stands still until the test moves it.
    fn set_up() -> (Client<MemoryState>, MemoryClock, Mailer) {
        let clock = MemoryClock::manual(Timestamp::from_micros(0));
        let client = Client::new(MemoryState::with_clock(clock.clone()));
        (client, clock, Mailer::default())
    }

    #[tokio::test]
    async fn a_sign_up_starts_one_chain_for_its_user() {
        let (client, _, _) = set_up();
        sign_up(&client, 7).await.unwrap();
        let started = testing::started::<Welcome, _>(&client).await.unwrap();
        started.assert_count(1).assert_one_with(|welcome| welcome.user == 7);
    }

    #[tokio::test]
    async fn the_reminder_comes_after_a_week() {
        let (client, clock, mailer) = set_up();
        let chain = sign_up(&client, 7).await.unwrap();
        let ran = worker(&client, &mailer).drain().await.unwrap();
        assert_eq!(ran.types(), ["welcome"]);

        clock.advance(WEEK - Duration::from_secs(1));
        assert!(
            worker(&client, &mailer).drain().await.unwrap().is_empty(),
            "a second early"
        );

        clock.advance(Duration::from_secs(1));
        let ran = worker(&client, &mailer).drain().await.unwrap();
        assert_eq!(ran.types(), ["remind"]);
        assert_eq!(mailer.mails(), ["to user 7: welcome", "to user 7: come back"]);
        client.wait(chain).await.unwrap();
    }

    #[tokio::test]
    async fn a_reminder_that_cannot_be_sent_is_tried_again_and_then_dead() {
        let (client, clock, mailer) = set_up();
        let chain = sign_up(&client, 7).await.unwrap();
        worker(&client, &mailer).drain().await.unwrap();
        mailer.0.lock().unwrap().is_down = true;
        clock.advance(WEEK);
        for attempt in [1, 2] {
            let ran = worker(&client, &mailer).drain().await.unwrap();
            let failures = ran.failures();
            assert_eq!(failures.len(), 1);
            assert_eq!(
                (failures[0].0.attempt, failures[0].1),
                (attempt, "the mail server is down")
            );
            clock.advance(Duration::from_secs(90)); // a minute, and some jitter
        }
        let error = client.wait(chain).await.unwrap_err();
        assert!(matches!(error, Error::ChainDead { .. }), "{error}");
    }

    /// The same on the store of the program: for processors with SQL of their own.
    #[tokio::test]
    async fn it_works_on_sqlite() {
        let client = Client::new(SqliteState::open(":memory:").await.unwrap());
        let mailer = Mailer::default();
        let chain = sign_up(&client, 7).await.unwrap();
        worker(&client, &mailer).drain().await.unwrap();
        let waiting = client
            .list_chain_jobs(chain)
            .statuses([JobStatus::Pending])
            .await
            .unwrap();
        client.trigger(waiting.items[0].id).await.unwrap(); // instead of a week
        let ran = worker(&client, &mailer).drain().await.unwrap();
        assert_eq!(ran.types(), ["remind"]);
    }

    /// Workers that run, as those of the program do: they see that the clock was moved.
    #[tokio::test]
    async fn running_workers_send_both_mails() {
        let (client, clock, mailer) = set_up();
        let mut events = client.events();
        let workers = worker(&client, &mailer).concurrency(4).start().await.unwrap();
        let chain = sign_up(&client, 7).await.unwrap();
        while !matches!(events.next().await, Some(Event::JobCompleted { continued: true, .. })) {}
        clock.advance(WEEK);
        client.wait(chain).await.unwrap();
        assert_eq!(mailer.mails(), ["to user 7: welcome", "to user 7: come back"]);
        workers.stop().await;
    }
}
