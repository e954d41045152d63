//! When a chain may run.

use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{Client, Deduplication, JobStatus, JobType, Step, Timestamp};

use super::jobs::{AfterOne, Count, First, Greet, POLL, Second, crew, greet, hasty, run_all};
use super::probe::{chain, chain_count, job, latest, status};
use crate::behaviour::PairFixture;

/// Longer than a start and a look take on a busy machine, and short enough to wait for.
const SOON: Duration = Duration::from_millis(1_200);
const LONG: Duration = Duration::from_secs(3_600);

/// The time by the store's clock.
async fn now<S: StateAdapter>(client: &Client<S>) -> Timestamp {
    let probe = client.start(Count { number: 0 }).await.expect("it starts");
    let now = chain(client, &probe).await.created_at;
    client.delete(&probe).await.expect("it can be deleted");
    now
}

/// A chain with a delay is pending, is not run before, and is run after. (SD1, SC4)
pub async fn a_delay_passes_before_it_runs<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).delay(SOON).await.expect("it starts");
    assert_eq!(started.status(), JobStatus::Pending);
    assert!(run_all(&client).await.is_empty(), "it is not due yet");
    fixture.elapse(client.state(), SOON + Duration::from_millis(20)).await;
    assert_eq!(run_all(&client).await.types(), [Greet::NAME]);
}

/// A chain with a time is not run before, and is run after. (SD2)
pub async fn a_time_comes_before_it_runs<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let time = now(&client).await.saturating_add(SOON);
    let started = client.start(greet("Ada")).at(time).await.expect("it starts");
    assert_eq!(latest(&client, &started).await.scheduled_at, time);
    assert!(run_all(&client).await.is_empty(), "it is not due yet");
    fixture.elapse(client.state(), SOON + Duration::from_millis(20)).await;
    assert_eq!(run_all(&client).await.types(), [Greet::NAME]);
}

/// A running worker takes a delayed chain when it is due, although nothing wakes it then. (SD1)
pub async fn a_worker_takes_it_when_it_is_due<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let workers = crew(&client)
        .poll_interval(Duration::from_millis(500))
        .start()
        .await
        .expect("the crew starts");
    let started = client
        .start(greet("Ada"))
        .delay(Duration::from_millis(100))
        .await
        .expect("it starts");
    fixture.elapse(client.state(), Duration::from_millis(100)).await;
    let ended = client
        .wait(&started)
        .poll_interval(POLL)
        .timeout(Duration::from_secs(10))
        .await;
    ended.expect("it ends");
    let run = latest(&client, &started).await;
    assert!(
        run.started_at.is_some_and(|at| at >= run.scheduled_at),
        "not before its time: {run:?}"
    );
    workers.stop().await;
}

/// A delay is measured from the moment of the write.
pub async fn a_delay_is_measured_from_the_write<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let before = now(&client).await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    let after = now(&client).await;
    let scheduled = latest(&client, &started).await.scheduled_at;
    assert!(
        (before.saturating_add(LONG)..=after.saturating_add(LONG)).contains(&scheduled),
        "{scheduled} is not an hour after the write"
    );
}

/// A time in the past means now: nothing overtakes by being dated back. (SD8)
pub async fn a_past_time_means_now<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let before = now(&client).await;
    let past = client
        .start(greet("Ada"))
        .at(Timestamp::from_micros(0))
        .await
        .expect("it starts");
    let at_once = client
        .start(greet("Eve"))
        .delay(Duration::ZERO)
        .await
        .expect("it starts");
    let after = now(&client).await;
    for started in [&past, &at_once] {
        let scheduled = latest(&client, started).await.scheduled_at;
        assert!((before..=after).contains(&scheduled), "{scheduled} is not now");
    }
    assert_eq!(run_all(&client).await.len(), 2);
}

/// A continuation may have a delay, a time, or a time that has passed. (SD3, SD4, SD9)
pub async fn a_continuation_has_a_schedule_of_its_own<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let before = now(&client).await;
    let in_two_hours = before.saturating_add(2 * LONG);
    let next = || Step::new(Second { number: 2 });
    let schedules = [
        (next().delay(LONG), LONG),
        (next().at(in_two_hours), 2 * LONG),
        (next().at(Timestamp::from_micros(0)), Duration::ZERO),
    ];
    for (step, expected) in schedules {
        let started = client.start(First { number: 1 }).await.expect("it starts");
        let mut tx = client.begin().await.expect("a transaction opens");
        let first = client
            .open::<First>(&started)
            .within(&mut tx)
            .await
            .expect("it can be opened");
        first.continue_with(step).await.expect("it continues");
        tx.commit().await.expect("it commits");
        let second = latest(&client, &started).await;
        let after = now(&client).await;
        assert!(
            (before.saturating_add(expected)..=after.saturating_add(expected)).contains(&second.scheduled_at),
            "{} is not {expected:?} after {before}",
            second.scheduled_at
        );
        assert_eq!(second.status, JobStatus::Pending);
    }
    assert_eq!(
        run_all(&client).await.types(),
        ["second", "third"],
        "only the last is due"
    );
}

/// A worker that starts the successor of its own chain leaves itself out, and so gets exactly one. (SD6)
pub async fn a_recurring_job_starts_its_successor<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client
        .start(Count { number: 1 })
        .deduplicate("tick")
        .await
        .expect("it starts");
    let drained = hasty(&client)
        .process(|job: queuert::Attempt<Count, F::State>| async move {
            let number = job.number;
            for _ in 0..2 {
                if number < 3 {
                    let own = Deduplication::while_open("tick").except_ids([job.chain_id()]);
                    job.client()
                        .start(Count { number: number + 1 })
                        .deduplicate(own)
                        .await?;
                }
            }
            job.finish(number)
        })
        .drain()
        .await
        .expect("the store answers");
    assert_eq!(drained.len(), 3);
    assert_eq!(chain_count(&client).await, 3);
}

/// A blocked chain that is unblocked is scheduled no earlier than that: it does not overtake. (B9)
pub async fn an_unblocked_chain_is_scheduled_then<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let later = client
        .start(AfterOne.blocked_by(&blocker).delay(LONG))
        .await
        .expect("it starts");
    let (waiting_before, later_before) = (latest(&client, &waiting).await, latest(&client, &later).await);
    fixture.elapse(client.state(), Duration::from_millis(10)).await;
    let unblocked_after = now(&client).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&blocker)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("done".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    let waiting = latest(&client, &waiting).await;
    assert!(waiting_before.scheduled_at < unblocked_after && waiting.scheduled_at >= unblocked_after);
    let later = latest(&client, &later).await;
    assert_eq!(later.status, JobStatus::Pending);
    assert_eq!(
        later.scheduled_at, later_before.scheduled_at,
        "what is due later stays so"
    );
}

/// A job that is due in a thousand years disturbs nobody. (9.5 H16)
pub async fn a_far_future_disturbs_nobody<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let thousand_years = Duration::from_secs(1_000 * 365 * 86_400);
    let far = client
        .start(greet("Ada"))
        .delay(thousand_years)
        .await
        .expect("it starts");
    let farther = client
        .start(greet("Ada"))
        .delay(Duration::MAX)
        .await
        .expect("it starts");
    let workers = crew(&client).start().await.expect("the crew starts");
    let near = client.start(greet("Eve")).await.expect("it starts");
    client.wait(&near).poll_interval(POLL).await.expect("it ends");
    workers.stop().await;
    for far in [&far, &farther] {
        assert_eq!(status(&client, far).await, JobStatus::Pending);
        let first = job(&client, far.id().first_job()).await;
        assert!(first.scheduled_at >= first.created_at.saturating_add(thousand_years));
    }
}
