//! Deduplication keys: who gets a contested one, and what may be one.

use queuert::{Client, Deduplication, Error, Step};

use super::jobs::{Greet, greet};
use super::probe::{chain_count, is_done};
use super::{assert_error, assert_item_refused};
use crate::behaviour::PairFixture;

/// Of many that start the same key at the same moment one starts the chain, and all get it. (9.5 H3)
pub async fn concurrent_starters_get_one_chain<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut starters = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        starters.spawn(async move {
            client
                .start(greet("Ada"))
                .deduplicate("key")
                .await
                .expect("it is answered")
        });
    }
    let started = starters.join_all().await;
    assert_eq!(started.iter().filter(|started| !started.deduplicated()).count(), 1);
    assert!(started.iter().all(|other| other.id() == started[0].id()));
    assert_eq!(chain_count(&client).await, 1);
}

async fn second_starter<F: PairFixture>(
    fixture: &F,
    client: &Client<F::State>,
) -> tokio::task::JoinHandle<queuert::Started<Greet>> {
    let client = client.clone();
    let mut second = tokio::spawn(async move {
        client
            .start(greet("Eve"))
            .deduplicate("key")
            .await
            .expect("it is answered")
    });
    assert!(
        !is_done(fixture, &mut second).await,
        "the second starter waits for the transaction of the first"
    );
    second
}

/// A second starter waits for the transaction of the first, and gets its chain when that commits. (9.5 H3)
pub async fn a_starter_waits_for_one_that_commits<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let first = client
        .start(greet("Ada"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it starts");
    let second = second_starter(&fixture, &client).await;
    tx.commit().await.expect("it commits");
    let second = second.await.expect("the task ends");
    assert_eq!((second.id(), second.deduplicated()), (first.id(), true));
}

/// A second starter waits for the transaction of the first, and starts the chain when that is rolled back. (9.5 H3)
pub async fn a_starter_waits_for_one_that_rolls_back<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let first = client
        .start(greet("Ada"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it starts");
    let second = second_starter(&fixture, &client).await;
    tx.rollback().await.expect("it rolls back");
    let second = second.await.expect("the task ends");
    assert!(!second.deduplicated());
    assert_ne!(second.id(), first.id());
    assert_eq!(chain_count(&client).await, 1);
}

/// A transaction sees the keys that it has started itself.
pub async fn a_transaction_sees_its_own_keys<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let first = client
        .start(greet("Ada"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it starts");
    let again = client
        .start(greet("Eve"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it is answered");
    tx.commit().await.expect("it commits");
    assert_eq!((again.id(), again.deduplicated()), (first.id(), true));
}

/// Keys are compared byte by byte.
pub async fn keys_are_compared_byte_by_byte<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for key in [
        "key",
        "Key",
        "key ",
        " key",
        "kéy",
        "ke\u{301}y",
        "k_y",
        "k%",
        "\u{1f511}",
        "'\"\\",
        "1",
        "01",
    ] {
        let started = client.start(greet("Ada")).deduplicate(key).await.expect("it starts");
        assert!(!started.deduplicated(), "{key:?}");
        let again = client
            .start(greet("Ada"))
            .deduplicate(key)
            .await
            .expect("it is answered");
        assert_eq!(again.id(), started.id(), "{key:?}");
    }
}

/// An empty key and one that is too long are refused, and nothing is started. (9.5 H24)
pub async fn bad_keys_are_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let long = "x".repeat(Deduplication::MAX_KEY_LENGTH + 1);
    for key in ["", &long] {
        let refused = client.start(greet("Ada")).deduplicate(key).await;
        assert_error!(
            refused,
            Error::Invalid {
                what: "deduplication key",
                ..
            }
        );
        let refused = client.start_many([Step::new(greet("Ada")).deduplicate(key)]).await;
        assert_item_refused!(
            refused,
            0,
            Error::Invalid {
                what: "deduplication key",
                ..
            }
        );
    }
    assert_eq!(chain_count(&client).await, 0);
}

/// The longest key is told from another one that differs at its end.
pub async fn the_longest_key_counts_in_full<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let long = |end: &str| format!("{}{end}", "x".repeat(Deduplication::MAX_KEY_LENGTH - 1));
    let one = client
        .start(greet("Ada"))
        .deduplicate(long("1"))
        .await
        .expect("it starts");
    let two = client
        .start(greet("Ada"))
        .deduplicate(long("2"))
        .await
        .expect("it starts");
    let again = client
        .start(greet("Ada"))
        .deduplicate(long("1"))
        .await
        .expect("it is answered");
    assert!(!two.deduplicated());
    assert_eq!(again.id(), one.id());
}
