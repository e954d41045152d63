//! Completion from outside: what cannot be opened, and how it cannot go on.

use queuert::{ChainRef, Error, JobStatus, JobType, Step};

use super::assert_error;
use super::jobs::{Count, Early, Fail, First, Greet, Knot, Late, Puzzle, Second, odd, run_all};
use super::probe::{job_count, latest, own_id, status, unknown_chain};
use super::recorder::Recorder;
use crate::behaviour::PairFixture;

/// A chain that has ended cannot be opened, however it ended. (WL5)
pub async fn an_ended_chain_cannot_be_opened<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let completed = client.start(Count { number: 1 }).await.expect("it starts");
    let dead = client.start(Fail { because: "so".into() }).await.expect("it starts");
    run_all(&client).await;
    let cancelled = client.start(Count { number: 2 }).await.expect("it starts");
    client.cancel(&cancelled).await.expect("it can be cancelled");
    let mut tx = client.begin().await.expect("a transaction opens");
    let refused = client.open::<Count>(&completed).within(&mut tx).await;
    assert_error!(
        refused,
        Error::ChainEnded {
            status: JobStatus::Completed,
            ..
        }
    );
    let refused = client.open::<Fail>(&dead).within(&mut tx).await;
    assert_error!(
        refused,
        Error::ChainEnded {
            status: JobStatus::Dead,
            ..
        }
    );
    let refused = client.open::<Count>(&cancelled).within(&mut tx).await;
    assert_error!(
        refused,
        Error::ChainEnded { status: JobStatus::Cancelled, chain } if chain == cancelled.id()
    );
}

/// A chain that does not exist is not found.
pub async fn a_missing_chain_is_not_found<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let nobody = ChainRef::<Greet>::new(unknown_chain());
    let refused = client.open::<Greet>(nobody).within(&mut tx).await;
    assert_error!(refused, Error::ChainNotFound(chain) if chain == unknown_chain());
}

/// A chain, or a current job, of another type than the caller said is not opened. (WL10)
pub async fn another_type_is_not_opened<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let before = latest(&client, &started).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let wrong_chain = ChainRef::<Greet>::new(started.id());
    let refused = client.open::<First>(wrong_chain).within(&mut tx).await;
    assert_error!(
        refused,
        Error::TypeMismatch { expected, actual, .. }
            if expected.as_str() == Greet::NAME && actual.as_str() == First::NAME
    );
    let refused = client.open::<Second>(&started).within(&mut tx).await;
    assert_error!(
        refused,
        Error::AtAnotherJob { chain, expected, actual }
            if chain == started.id() && expected.as_str() == Second::NAME && actual.as_str() == First::NAME
    );
    tx.commit().await.expect("it commits");
    assert_eq!(latest(&client, &started).await, before);
}

/// A continuation may have an id of the caller's own; one that exists is refused, and the chain stays open. (C8, C9)
pub async fn a_continuation_may_have_a_supplied_id<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let taken = Step::new(Second { number: 2 }).id(started.id().first_job());
    assert_error!(open.continue_with(taken).await, Error::IdTaken(id) if id == started.id().first_job());
    let open = client
        .open::<First>(&started)
        .within(&mut tx)
        .await
        .expect("it is still open");
    let own = Step::new(Second { number: 2 })
        .id(own_id(5))
        .priority(4)
        .max_attempts(2);
    open.continue_with(own).await.expect("it continues");
    tx.commit().await.expect("it commits");
    let second = latest(&client, &started).await;
    assert_eq!(
        (second.id, second.priority, second.max_attempts),
        (own_id(5), 4, Some(2))
    );
    assert_eq!(second.chain_id, started.id());
}

/// A continuation may wait for a chain; one that does not exist is refused, and so is a setting that cannot be. (VC13)
pub async fn a_continuation_may_be_blocked<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let early = client.start(Early).await.expect("it starts");
    let knot = client
        .start(Knot.blocked_by([] as [ChainRef<Early>; 0]))
        .await
        .expect("it starts");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let nobody = ChainRef::<Knot>::new(unknown_chain());
    let open = client
        .open::<Early>(&early)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let refused = open.continue_with(Late.blocked_by([nobody])).await;
    assert_error!(refused, Error::BlockerNotFound { chain, .. } if chain == unknown_chain());
    let open = client
        .open::<Early>(&early)
        .within(&mut tx)
        .await
        .expect("it is still open");
    let refused = open.continue_with(Late.blocked_by([&knot]).max_attempts(0)).await;
    assert_error!(
        refused,
        Error::Invalid {
            what: "max_attempts",
            ..
        }
    );
    let open = client
        .open::<Early>(&early)
        .within(&mut tx)
        .await
        .expect("it is still open");
    let late = open
        .continue_with(Late.blocked_by([&knot]))
        .await
        .expect("it continues");
    assert_eq!(late.record().status, JobStatus::Blocked);
    drop(late);
    tx.commit().await.expect("it commits");
    assert!(recorder.notices().is_empty(), "a blocked job is not available");
    assert_eq!(run_all(&client).await.types(), [Knot::NAME, Late::NAME]);
    assert_eq!(status(&client, &early).await, JobStatus::Completed);
}

/// A continuation cannot wait for a chain that waits for its own chain, nor for its own chain. (9.5 H18)
pub async fn a_circle_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let early = client.start(Early).await.expect("it starts");
    let knot = client.start(Knot.blocked_by([&early])).await.expect("it starts");
    let before = latest(&client, &early).await;
    let itself = ChainRef::<Knot>::new(early.id());
    let mut tx = client.begin().await.expect("a transaction opens");
    for blocker in [knot.chain(), itself] {
        let open = client
            .open::<Early>(&early)
            .within(&mut tx)
            .await
            .expect("it can be opened");
        let refused = open.continue_with(Late.blocked_by([blocker])).await;
        assert_error!(refused, Error::BlockerCycle { chain, .. } if chain == blocker.id());
    }
    tx.commit().await.expect("it commits");
    assert_eq!(latest(&client, &early).await, before);
    assert_eq!(job_count(&client).await, 2);
}

/// An output or a next input that cannot be written as JSON is refused, and the chain stays open. (VC11, VC13)
pub async fn what_is_no_json_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(Puzzle::default()).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Puzzle>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    assert_error!(open.finish(odd()).await, Error::Unencodable { part: "output", .. });
    let open = client
        .open::<Puzzle>(&started)
        .within(&mut tx)
        .await
        .expect("it is still open");
    let refused = open.continue_with(Puzzle { odd: odd() }).await;
    assert_error!(refused, Error::Unencodable { part: "input", .. });
    tx.commit().await.expect("it commits");
    assert_eq!(status(&client, &started).await, JobStatus::Pending);
    assert_eq!(job_count(&client).await, 1);
}
