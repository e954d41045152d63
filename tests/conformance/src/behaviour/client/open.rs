//! Completion from outside.

use queuert::adapter::{Notice, Settled};
use queuert::{AbortReason, Error, JobStatus, JobType};

use super::assert_error;
use super::jobs::{
    Accept, AfterOne, AwaitApproval, Decide, DecideOutput, First, Greet, Reject, Round, Second, Ship, Third, greet,
    greeting, run_all,
};
use super::probe::{Stubborn, chain, claim, finish_as_worker, is_done, latest, status};
use super::recorder::{Recorder, available};
use crate::behaviour::PairFixture;

/// A chain of one job is finished from outside: nobody completed it, its output is there. (WL1)
pub async fn a_chain_is_finished_from_outside<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    assert_eq!(open.name, "Ada");
    assert_eq!(
        (open.record().status, open.record().chain_id),
        (JobStatus::Pending, started.id())
    );
    open.finish("by hand".to_owned()).await.expect("it finishes");
    assert_eq!(
        status(&client, &started).await,
        JobStatus::Pending,
        "it is not committed yet"
    );
    tx.commit().await.expect("it commits");
    let job = latest(&client, &started).await;
    assert_eq!(
        (job.status, job.completed_by, job.attempt),
        (JobStatus::Completed, None, 0)
    );
    assert!(job.ended_at.is_some());
    assert_eq!(client.wait(&started).await.expect("it ended"), "by hand");
}

/// Several steps are walked in one transaction, each seeing its input and the chain's type. (WL2, WL3, WL8)
pub async fn several_steps_are_walked<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let first = client
        .open::<First>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let second = first.continue_with(Second { number: 2 }).await.expect("it continues");
    assert_eq!((second.number, second.record().chain_index), (2, 1));
    assert_eq!(second.record().chain_type.as_str(), First::NAME);
    assert_eq!(second.record().status, JobStatus::Pending);
    let third = second.continue_with(Third { number: 3 }).await.expect("it continues");
    assert_eq!((third.number, third.record().chain_index), (3, 2));
    assert_eq!(third.record().chain_type.as_str(), First::NAME);
    third.finish(33).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    assert_eq!(client.wait(&started).await.expect("it ended"), 33);
    let jobs = client
        .list_chain_jobs(&started)
        .await
        .expect("jobs can be listed")
        .items;
    assert_eq!(jobs.len(), 3);
    assert!(jobs.iter().all(|job| job.status == JobStatus::Completed));
    assert!(run_all(&client).await.is_empty(), "nothing is left to do");
}

/// A chain that was opened again goes on where it stands. (WL2)
pub async fn a_chain_is_opened_where_it_stands<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let first = client
        .open::<First>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    first.continue_with(Second { number: 5 }).await.expect("it continues");
    let second = client
        .open::<Second>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    assert_eq!(second.number, 5);
    drop(second);
    tx.commit().await.expect("it commits");
    run_all(&client).await;
    assert_eq!(client.wait(&started).await.expect("it ended"), 6);
}

/// The first step is done from outside, the second by a worker. (WL4, VC12)
pub async fn a_worker_goes_on_after_an_approval<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(AwaitApproval { order: 7 }).await.expect("it starts");
    assert!(run_all(&client).await.is_empty(), "no worker approves");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<AwaitApproval>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let order = open.order;
    let ship = Ship {
        order,
        approved_by: "Ada".into(),
    };
    open.continue_with(ship).await.expect("it continues");
    recorder.assert_silent("before the commit");
    tx.commit().await.expect("it commits");
    assert_eq!(recorder.notices(), [available(Ship::NAME, 1)]);
    run_all(&client).await;
    assert_eq!(
        client.wait(&started).await.expect("it ended"),
        "order 7 approved by Ada"
    );
}

/// Either branch can be taken, and the output tells which it was.
pub async fn either_branch_can_be_taken<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let [left, right] = [1, 2].map(|amount| Decide { amount });
    let (left, right) = client.start_each((left, right)).await.expect("they start");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Decide>(&left)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let accept = open.continue_with(Accept).await.expect("it continues");
    accept.finish(true).await.expect("it finishes");
    let open = client
        .open::<Decide>(&right)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let reject = open
        .continue_with(Reject { reason: "no".into() })
        .await
        .expect("it continues");
    reject.finish("no".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    assert!(matches!(
        client.wait(&left).await.expect("it ended"),
        DecideOutput::Accept(true)
    ));
    assert!(matches!(client.wait(&right).await.expect("it ended"), DecideOutput::Reject(reason) if reason == "no"));
}

/// A loop can be walked round and ended. (C4)
pub async fn a_loop_can_be_walked<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(Round { left: 5 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let mut open = client
        .open::<Round>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    while open.left > 0 {
        let left = open.left - 1;
        open = open.continue_with(Round { left }).await.expect("it continues");
    }
    let rounds = open.record().chain_index;
    open.finish(rounds).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    assert_eq!(client.wait(&started).await.expect("it ended"), 5);
    assert_eq!(chain(&client, &started).await.length, 6);
}

/// An opened job that is dropped leaves the chain as it was, also when the transaction commits. (WL6)
pub async fn a_dropped_job_changes_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let before = latest(&client, &started).await;
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    drop(
        client
            .open::<Greet>(&started)
            .within(&mut tx)
            .await
            .expect("it can be opened"),
    );
    tx.commit().await.expect("it commits");
    assert_eq!(latest(&client, &started).await, before);
    recorder.assert_silent("although nothing happened");
    run_all(&client).await;
    assert_eq!(client.wait(&started).await.expect("it ended"), greeting("Ada"));
}

/// A running attempt whose job is completed from outside is told, and its own result is lost. (WL7, NT5)
pub async fn a_running_attempt_is_told<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let worker = Stubborn::start(&client).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    worker.runs().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    assert_eq!(open.record().status, JobStatus::Running);
    open.finish("by hand".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    assert_eq!(worker.told().await, AbortReason::AlreadyCompleted);
    assert_eq!(client.wait(&started).await.expect("it ended"), "by hand");
    let notices = recorder.notices();
    assert!(
        notices.contains(&Notice::LeaseLost(started.id().first_job())),
        "{notices:?}"
    );
}

/// An attempt whose job was completed from outside cannot commit, also if it was not told. (WL7, 9.5 H6)
pub async fn a_running_attempt_cannot_commit<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("by hand".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    let late = finish_as_worker(&client, started.id().first_job()).await;
    assert_eq!(late, Settled::Lost(AbortReason::AlreadyCompleted));
    assert_eq!(client.wait(&started).await.expect("it ended"), "by hand");
}

/// A blocked job can be completed; the end of what it waited for does not bring it back.
pub async fn a_blocked_job_can_be_completed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<AfterOne>(&waiting)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    assert_eq!(open.record().status, JobStatus::Blocked);
    open.finish("without it".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    assert_eq!(run_all(&client).await.types(), [Greet::NAME]);
    assert_eq!(client.wait(&waiting).await.expect("it ended"), "without it");
}

/// What waits for the chain is unblocked with its end, in the same transaction.
pub async fn the_end_unblocks_what_waits<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&blocker)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("done".to_owned()).await.expect("it finishes");
    assert_eq!(
        status(&client, &waiting).await,
        JobStatus::Blocked,
        "it is not committed yet"
    );
    let inside = client
        .get_chain(&waiting)
        .within(&mut tx)
        .await
        .expect("it can be read");
    assert_eq!(inside.expect("it exists").status, JobStatus::Pending);
    tx.commit().await.expect("it commits");
    assert_eq!(status(&client, &waiting).await, JobStatus::Pending);
    let notices = recorder.notices();
    assert_eq!(
        notices,
        [Notice::ChainEnded(blocker.id()), available(AfterOne::NAME, 1)]
    );
}

/// A transaction that is rolled back leaves everything as it was: chain, dependants, running attempt. (LG13)
pub async fn a_rollback_leaves_everything_as_it_was<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    let before = (latest(&client, &blocker).await, latest(&client, &waiting).await);
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&blocker)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("by hand".to_owned()).await.expect("it finishes");
    tx.rollback().await.expect("it rolls back");
    assert_eq!(
        (latest(&client, &blocker).await, latest(&client, &waiting).await),
        before
    );
    recorder.assert_silent("after a rollback");
    let own = finish_as_worker(&client, blocker.id().first_job()).await;
    assert!(
        matches!(own, Settled::Applied(_)),
        "the attempt has its job still: {own:?}"
    );
}

/// Of two that open the same chain the second waits for the first, and sees what it did. (9.5 H6, H30)
pub async fn a_second_opener_waits_for_the_first<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let mut second = tokio::spawn({
        let (client, chain) = (client.clone(), started.chain());
        async move {
            let mut tx = client.begin().await.expect("a transaction opens");
            client.open::<Greet>(chain).within(&mut tx).await.map(drop)
        }
    });
    assert!(!is_done(&fixture, &mut second).await, "the second waits");
    open.finish("by the first".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    let second = second.await.expect("the task ends");
    assert_error!(
        second,
        Error::ChainEnded {
            status: JobStatus::Completed,
            ..
        }
    );
    assert_eq!(client.wait(&started).await.expect("it ended"), "by the first");
}
