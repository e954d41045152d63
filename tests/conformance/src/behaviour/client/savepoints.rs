//! Savepoints: what fails inside is undone, with the effects that it would have had.

use queuert::adapter::{Notice, StateAdapter};
use queuert::{Client, Error, JobStatus, JobType, Transaction};

use super::assert_error;
use super::jobs::{AfterOne, Count, Greet, greet};
use super::probe::{chain_count, own_id, status};
use super::recorder::{Recorder, available};
use crate::behaviour::PairFixture;

/// Why a savepoint fails.
#[derive(Debug)]
enum Failed {
    OnPurpose(u32),
    Queue(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Queue(error)
    }
}

async fn start<S: StateAdapter>(client: &Client<S>, tx: &mut Transaction<S>, number: u32) -> Result<(), Failed> {
    client.start(Count { number }).within(tx).await?;
    Ok(())
}

async fn numbers<S: StateAdapter>(client: &Client<S>) -> Vec<u32> {
    let started = queuert::testing::started::<Count, _>(client)
        .await
        .expect("they can be read");
    started.chains.iter().map(|chain| chain.input.number).collect()
}

/// A savepoint that succeeds keeps its writes and effects, and gives its result. (H20, H31, H45)
pub async fn success_keeps_writes_and_effects<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    start(&client, &mut tx, 1).await.expect("it starts");
    let result = tx
        .savepoint(async |tx| {
            start(&client, tx, 2).await?;
            Ok::<_, Failed>("result")
        })
        .await;
    assert_eq!(result.expect("it succeeds"), "result");
    recorder.assert_silent("before the commit");
    tx.commit().await.expect("it commits");
    assert_eq!(numbers(&client).await, [1, 2]);
    assert_eq!(recorder.notices(), [available(Count::NAME, 2)]);
    assert_eq!(recorder.events().len(), 4);
}

/// A savepoint that fails gives the caller's error, and takes its writes and effects with it; what came before, and
/// what comes after, stays. (H21, H22, H28, H33, H43)
pub async fn failure_drops_writes_and_effects<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    start(&client, &mut tx, 1).await.expect("it starts");
    let result = tx
        .savepoint(async |tx| {
            start(&client, tx, 2).await?;
            client.start(greet("Ada")).within(tx).await?;
            Err::<(), _>(Failed::OnPurpose(2))
        })
        .await;
    assert_error!(result, Failed::OnPurpose(2));
    start(&client, &mut tx, 3).await.expect("the transaction goes on");
    tx.commit().await.expect("it commits");
    assert_eq!(numbers(&client).await, [1, 3]);
    assert_eq!(chain_count(&client).await, 2);
    assert_eq!(recorder.notices(), [available(Count::NAME, 2)]);
    assert_eq!(recorder.events().len(), 4);
}

/// A failed savepoint can be tried again. (H33, H35)
pub async fn a_failed_savepoint_can_be_tried_again<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    for attempt in 0..4 {
        let result = tx
            .savepoint(async |tx| {
                start(&client, tx, attempt).await?;
                if attempt < 3 {
                    return Err(Failed::OnPurpose(attempt));
                }
                Ok(())
            })
            .await;
        assert_eq!(result.is_ok(), attempt == 3);
    }
    tx.commit().await.expect("it commits");
    assert_eq!(numbers(&client).await, [3]);
    assert_eq!(recorder.notices(), [available(Count::NAME, 1)]);
}

/// An inner savepoint that fails leaves the outer one intact. (H24, H46)
pub async fn an_inner_failure_leaves_the_outer_intact<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let outer = tx
        .savepoint(async |tx| {
            start(&client, tx, 1).await?;
            let inner = tx
                .savepoint(async |tx| {
                    start(&client, tx, 2).await?;
                    Err::<(), _>(Failed::OnPurpose(2))
                })
                .await;
            assert_error!(inner, Failed::OnPurpose(2));
            start(&client, tx, 3).await
        })
        .await;
    outer.expect("it succeeds");
    tx.commit().await.expect("it commits");
    assert_eq!(numbers(&client).await, [1, 3]);
    assert_eq!(recorder.notices(), [available(Count::NAME, 2)]);
}

/// An outer savepoint that fails undoes the inner ones, also those that succeeded. (H25, H46)
pub async fn an_outer_failure_undoes_the_inner<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    start(&client, &mut tx, 1).await.expect("it starts");
    let outer = tx
        .savepoint(async |tx| {
            tx.savepoint(async |tx| {
                tx.savepoint(async |tx| start(&client, tx, 2).await).await?;
                start(&client, tx, 3).await
            })
            .await?;
            Err::<(), _>(Failed::OnPurpose(1))
        })
        .await;
    assert_error!(outer, Failed::OnPurpose(1));
    tx.commit().await.expect("it commits");
    assert_eq!(numbers(&client).await, [1]);
    assert_eq!(recorder.notices(), [available(Count::NAME, 1)]);
}

/// A rollback of the transaction undoes its savepoints, whatever became of them.
pub async fn a_rollback_undoes_the_savepoints<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let result = client
        .transaction(async |tx| {
            tx.savepoint(async |tx| start(&client, tx, 1).await).await?;
            Err::<(), _>(Failed::OnPurpose(0))
        })
        .await;
    assert_error!(result, Failed::OnPurpose(0));
    assert_eq!(chain_count(&client).await, 0);
    recorder.assert_silent("after a rollback");
}

/// An error of a request inside a savepoint undoes that savepoint only.
pub async fn a_refusal_undoes_its_savepoint_only<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("Ada")).id(own_id(1)).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let result = tx
        .savepoint(async |tx| {
            start(&client, tx, 1).await?;
            client.start(greet("Eve")).id(own_id(1)).within(tx).await?;
            Ok::<_, Failed>(())
        })
        .await;
    assert_error!(result, Failed::Queue(Error::IdTaken(_)));
    start(&client, &mut tx, 2).await.expect("the transaction goes on");
    tx.commit().await.expect("it commits");
    assert_eq!(numbers(&client).await, [2]);
}

/// A completion inside a savepoint that fails is undone: the chain is open, and what waits for it blocked. (LG18)
pub async fn a_completion_is_undone<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    for (attempt, output) in [(1, "undone"), (2, "done")] {
        let _ = tx
            .savepoint(async |tx| {
                let open = client.open::<Greet>(&blocker).within(tx).await?;
                open.finish(output.to_owned()).await?;
                if attempt == 1 {
                    return Err(Failed::OnPurpose(attempt));
                }
                Ok(())
            })
            .await;
        let inside = client
            .get_chain(&waiting)
            .within(&mut tx)
            .await
            .expect("it can be read");
        let expected = [JobStatus::Blocked, JobStatus::Pending][attempt as usize - 1];
        assert_eq!(inside.expect("it exists").status, expected, "after attempt {attempt}");
    }
    tx.commit().await.expect("it commits");
    assert_eq!(client.wait(&blocker).await.expect("it ended"), "done");
    assert_eq!(status(&client, &waiting).await, JobStatus::Pending);
    let events: Vec<_> = recorder.named_events();
    assert_eq!(
        events,
        [
            ("job completed", blocker.id()),
            ("chain completed", blocker.id()),
            ("job unblocked", waiting.id()),
        ]
    );
    assert_eq!(
        recorder.notices(),
        [Notice::ChainEnded(blocker.id()), available(AfterOne::NAME, 1)]
    );
}

/// Ids and keys of a savepoint that failed are free again.
pub async fn ids_and_keys_are_free_again<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let failed = tx
        .savepoint(async |tx| {
            client
                .start(greet("Ada"))
                .id(own_id(1))
                .deduplicate("key")
                .within(tx)
                .await?;
            Err::<(), _>(Failed::OnPurpose(1))
        })
        .await;
    assert_error!(failed, Failed::OnPurpose(1));
    let again = client
        .start(greet("Eve"))
        .id(own_id(1))
        .deduplicate("key")
        .within(&mut tx)
        .await;
    assert!(!again.expect("both are free").deduplicated());
    tx.commit().await.expect("it commits");
    assert_eq!(chain_count(&client).await, 1);
}

/// What operators do inside a savepoint that fails is undone.
pub async fn operations_are_undone<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let (kept, cancelled) = client.start_each((greet("a"), greet("b"))).await.expect("they start");
    client.cancel(&cancelled).await.expect("it can be cancelled");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let failed = tx
        .savepoint(async |tx| {
            client.delete(&kept).within(tx).await?;
            client.retry(&cancelled).within(tx).await?;
            Err::<(), _>(Failed::OnPurpose(1))
        })
        .await;
    assert_error!(failed, Failed::OnPurpose(1));
    tx.commit().await.expect("it commits");
    assert_eq!(status(&client, &kept).await, JobStatus::Pending);
    assert_eq!(status(&client, &cancelled).await, JobStatus::Cancelled);
    recorder.assert_silent("for what was undone");
}
