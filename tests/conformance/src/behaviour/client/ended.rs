//! Transactions that end behind the library's back: the store rolls one back by itself, or the caller executes a statement
//! that ends it. Nothing that the library is asked to do in it happens outside of a transaction.

use queuert::adapter::StateAdapter;
use queuert::{Client, Error, Transaction, TransactionFault};

use super::assert_error;
use super::jobs::{Count, Greet, greet, greeting, run_all};
use super::probe::chain_count;
use crate::behaviour::PairFixture;

/// The ways in which transactions of the store end, or none with a word about it.
fn ways<F: PairFixture>(fixture: &F) -> std::ops::Range<usize> {
    let ways = fixture.capabilities().ends;
    if ways == 0 {
        eprintln!("left out: the transactions of this store do not end by themselves");
    }
    0..ways
}

/// The store works as before.
async fn assert_well<S: StateAdapter>(client: &Client<S>) {
    let chain = client.start(greet("Ada")).await.expect("it starts");
    run_all(client).await;
    assert_eq!(client.wait(&chain).await.expect("it ended"), greeting("Ada"));
    client.delete(chain.id()).await.expect("it is deleted");
}

/// No request runs in a transaction that has ended, and its commit is refused: what was started exists neither then nor
/// after a rollback or a drop.
pub async fn nothing_is_written_in_a_transaction_that_has_ended<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for way in ways(&fixture) {
        for ending in ["commit", "rollback", "drop"] {
            let mut tx = client.begin().await.expect("a transaction opens");
            fixture.end_transaction(&mut tx, way).await;
            let started = client.start(Count { number: 1 }).within(&mut tx).await;
            assert_error!(started, Error::TransactionUnusable(TransactionFault::Ended));
            let many = client.start_many([Count { number: 2 }, Count { number: 3 }]);
            let started = many.within(&mut tx).await;
            assert_error!(started, Error::TransactionUnusable(TransactionFault::Ended));
            let savepoint = tx.savepoint(async |_| Ok::<_, Error>(())).await;
            assert_error!(savepoint, Error::TransactionUnusable(TransactionFault::Ended));
            match ending {
                "commit" => {
                    let committed = tx.commit().await;
                    assert_error!(committed, Error::TransactionUnusable(TransactionFault::Ended));
                }
                "rollback" => tx.rollback().await.expect("there is nothing to roll back"),
                _ => drop(tx),
            }
            assert_eq!(chain_count(&client).await, 0, "way {way}, {ending}");
            assert_well(&client).await;
        }
    }
}

/// The same if the caller has dropped the future of the statement that ends it, and the store has not run that yet when
/// the library is asked.
pub async fn nothing_is_written_behind_an_abandoned_statement_that_ends_the_transaction<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(greet("Ada")).await.expect("it starts");
    for way in ways(&fixture) {
        for asked in ["start", "start_many", "savepoint", "in a savepoint", "finish", "commit"] {
            let mut tx = client.begin().await.expect("a transaction opens");
            let answer = if asked == "in a savepoint" {
                tx.savepoint(async |tx: &mut Transaction<_>| {
                    fixture.abandon_end(tx, way).await;
                    Ok::<_, Error>(())
                })
                .await
            } else {
                fixture.abandon_end(&mut tx, way).await;
                match asked {
                    "start" => client.start(Count { number: 1 }).within(&mut tx).await.map(drop),
                    "start_many" => {
                        let many = client.start_many([Count { number: 2 }, Count { number: 3 }]);
                        many.within(&mut tx).await.map(drop)
                    }
                    "savepoint" => {
                        tx.savepoint(async |tx: &mut Transaction<_>| {
                            client.start(Count { number: 4 }).within(tx).await.map(drop)
                        })
                        .await
                    }
                    "finish" => match client.open::<Greet>(&chain).within(&mut tx).await {
                        Ok(open) => open.finish("by hand".to_owned()).await,
                        Err(error) => Err(error),
                    },
                    _ => Err(Error::TransactionUnusable(TransactionFault::Ended)),
                }
            };
            assert_error!(answer, Error::TransactionUnusable(TransactionFault::Ended));
            let committed = tx.commit().await;
            assert_error!(committed, Error::TransactionUnusable(TransactionFault::Ended));
            assert_eq!(chain_count(&client).await, 1, "way {way}, {asked}");
        }
    }
    run_all(&client).await;
    assert_eq!(client.wait(&chain).await.expect("it ended"), greeting("Ada"));
}

/// What was started before goes with the transaction, or was committed by the caller's own statement; the commit says that
/// it has not happened.
pub async fn the_commit_of_a_transaction_that_has_ended_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for way in ways(&fixture) {
        let mut tx = client.begin().await.expect("a transaction opens");
        fixture.end_transaction(&mut tx, way).await;
        let committed = tx.commit().await;
        assert_error!(committed, Error::TransactionUnusable(TransactionFault::Ended));
        assert_well(&client).await;
    }
}

/// A chain cannot be completed in it either, also if it was opened before.
pub async fn no_chain_is_completed_in_a_transaction_that_has_ended<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for way in ways(&fixture) {
        let chain = client.start(greet("Ada")).await.expect("it starts");
        let mut tx = client.begin().await.expect("a transaction opens");
        fixture.end_transaction(&mut tx, way).await;
        let finished = async {
            let open = client.open::<Greet>(&chain).within(&mut tx).await?;
            open.finish("by hand".to_owned()).await
        };
        assert_error!(finished.await, Error::TransactionUnusable(TransactionFault::Ended));
        // Not dropped: the locks of one that the caller has begun instead would be there for a moment still.
        tx.rollback().await.expect("there is nothing to roll back");
        run_all(&client).await;
        assert_eq!(client.wait(&chain).await.expect("it ended"), greeting("Ada"));
    }
}

/// A savepoint in which the transaction ends is not kept, and neither is what surrounds it.
pub async fn a_savepoint_in_which_the_transaction_ends_fails<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for way in ways(&fixture) {
        let mut tx = client.begin().await.expect("a transaction opens");
        let kept = tx
            .savepoint(async |tx: &mut Transaction<_>| {
                fixture.end_transaction(tx, way).await;
                Ok::<_, Error>(())
            })
            .await;
        assert_error!(kept, Error::TransactionUnusable(TransactionFault::Ended));
        let started = client.start(Count { number: 1 }).within(&mut tx).await;
        assert_error!(started, Error::TransactionUnusable(TransactionFault::Ended));
        let committed = tx.commit().await;
        assert_error!(committed, Error::TransactionUnusable(TransactionFault::Ended));
        assert_eq!(chain_count(&client).await, 0, "way {way}");
        assert_well(&client).await;
    }
}

/// In a transaction that the caller commits without the library nothing is written either once it has ended.
pub async fn nothing_is_written_in_a_foreign_transaction_that_has_ended<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for way in ways(&fixture) {
        let mut own = client.state().begin().await.expect("a transaction opens");
        fixture.end_transaction(&mut own, way).await;
        let mut foreign = client.adopt(&mut own);
        let started = client.start(Count { number: 1 }).within(&mut foreign).await;
        // Unless the caller has begun another one, in which it is written as it should be.
        assert!(
            matches!(
                started,
                Ok(_) | Err(Error::TransactionUnusable(TransactionFault::Ended))
            ),
            "{started:?}"
        );
        drop(foreign);
        client.state().rollback(own).await.expect("it rolls back");
        assert_eq!(chain_count(&client).await, 0, "way {way}");
        assert_well(&client).await;
    }
}
