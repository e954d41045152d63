//! One chain per key.

use std::time::Duration;

use queuert::{ChainRef, Deduplication, JobStatus, JobType, Step};

use super::jobs::{AfterOne, Count, Fail, First, Greet, Second, Third, greet, greeting, run_all};
use super::probe::{chain, chain_count, claim, own_id, status, unknown_chain};
use crate::behaviour::PairFixture;

/// Longer than some starts take on a busy machine, and short enough to wait for its end.
const WINDOW: Duration = Duration::from_millis(1_200);

/// A key gives one chain, to whoever asks; another key gives another chain. (D1, SC2)
pub async fn one_key_is_one_chain<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    let again = client
        .start(greet("Eve"))
        .deduplicate("key")
        .await
        .expect("it is answered");
    let other = client
        .start(greet("Grace"))
        .deduplicate("other")
        .await
        .expect("it starts");
    assert!(!first.deduplicated() && again.deduplicated() && !other.deduplicated());
    assert_eq!(first.id(), again.id());
    assert_ne!(first.id(), other.id());
    assert_eq!(chain(&client, &first).await.deduplication_key.as_deref(), Some("key"));
    run_all(&client).await;
    assert_eq!(client.wait(&again).await.expect("it ended"), greeting("Ada"));
    assert_eq!(chain_count(&client).await, 2);
}

/// A chain that has ended frees its key, unless any chain counts. (D2)
pub async fn an_ended_chain_frees_its_key<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    run_all(&client).await;
    let any = client
        .start(greet("Eve"))
        .deduplicate(Deduplication::forever("key"))
        .await
        .expect("it is answered");
    assert!(any.deduplicated());
    assert_eq!((any.id(), any.status()), (first.id(), JobStatus::Completed));
    let open = client
        .start(greet("Grace"))
        .deduplicate("key")
        .await
        .expect("it starts");
    assert!(!open.deduplicated());
    assert_ne!(open.id(), first.id());
}

/// A chain that died, was cancelled or deleted does not hold its key.
pub async fn a_stopped_chain_frees_its_key<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let dead = client
        .start(Fail { because: "so".into() })
        .deduplicate("key")
        .await
        .expect("it starts");
    run_all(&client).await;
    assert_eq!(status(&client, &dead).await, JobStatus::Dead);
    let start = async || {
        let again = client
            .start(Fail { because: "so".into() })
            .deduplicate("key")
            .await
            .expect("it starts");
        assert!(!again.deduplicated());
        again
    };
    client.cancel(&start().await).await.expect("it can be cancelled");
    client.delete(&start().await).await.expect("it can be deleted");
    start().await;
    assert_eq!(chain_count(&client).await, 3);
}

/// A deleted chain does not count, also where any chain does.
pub async fn a_deleted_chain_does_not_count<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    client.delete(&first).await.expect("it can be deleted");
    let again = client
        .start(greet("Ada"))
        .deduplicate(Deduplication::forever("key"))
        .await
        .expect("it starts");
    assert!(!again.deduplicated());
}

/// An ended chain counts until its window has passed, an open one until it ends. (D3)
pub async fn a_window_passes_for_ended_chains<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let window = |key: &str| Deduplication::within(key, WINDOW);
    let ended = client.start(greet("Ada")).deduplicate(window("ended")).await;
    let ended = ended.expect("it starts");
    run_all(&client).await;
    let open = client.start(greet("Eve")).deduplicate(window("open")).await;
    let open = open.expect("it starts");
    for (key, chain) in [("ended", &ended), ("open", &open)] {
        let again = client.start(greet("Ada")).deduplicate(window(key)).await;
        assert_eq!(again.expect("it is answered").id(), chain.id(), "{key}");
    }
    fixture.elapse(client.state(), WINDOW + Duration::from_millis(50)).await;
    let again = client.start(greet("Ada")).deduplicate(window("ended")).await;
    assert!(!again.expect("it starts").deduplicated());
    let again = client.start(greet("Ada")).deduplicate(window("open")).await;
    assert_eq!(again.expect("it is answered").id(), open.id());
}

/// A chain within the window counts although it has ended.
pub async fn an_ended_chain_counts_within_its_window<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let window = Deduplication::within("key", Duration::from_secs(3_600));
    let first = client
        .start(greet("Ada"))
        .deduplicate(window.clone())
        .await
        .expect("it starts");
    run_all(&client).await;
    let again = client
        .start(greet("Ada"))
        .deduplicate(window)
        .await
        .expect("it is answered");
    assert_eq!((again.id(), again.status()), (first.id(), JobStatus::Completed));
}

/// Each type has its own keys. (D4)
pub async fn each_type_has_its_own_keys<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let one = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    let two = client
        .start(Count { number: 1 })
        .deduplicate("key")
        .await
        .expect("it starts");
    assert!(!two.deduplicated());
    assert_ne!(one.id(), two.id());
}

/// A key that occurs twice in one batch gives one chain, at both places. (D5)
pub async fn a_key_twice_in_a_batch_is_one_chain<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let steps = ["key", "other", "key"].map(|key| Step::new(greet(key)).deduplicate(key));
    let started = client.start_many(steps).await.expect("they start");
    let flags: Vec<_> = started.iter().map(queuert::Started::deduplicated).collect();
    assert_eq!(flags, [false, false, true]);
    assert_eq!(started[0].id(), started[2].id());
    assert_eq!(chain_count(&client).await, 2);
}

/// A batch finds the chains that are there already. (D6, SC12)
pub async fn a_batch_finds_existing_chains<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let existing = client.start(greet("Ada")).deduplicate("b").await.expect("it starts");
    let steps = ["a", "b", "c"].map(|key| Step::new(greet(key)).deduplicate(key));
    let started = client.start_many(steps).await.expect("they start");
    let flags: Vec<_> = started.iter().map(queuert::Started::deduplicated).collect();
    assert_eq!(flags, [false, true, false]);
    assert_eq!(started[1].id(), existing.id());
}

/// Each chain of a batch is looked up with its own scope; what an earlier one started counts for the next. (D7)
pub async fn each_chain_of_a_batch_has_its_own_scope<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ended = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    run_all(&client).await;
    let steps = [
        Deduplication::forever("key"),
        Deduplication::while_open("key"),
        Deduplication::forever("key"),
    ]
    .map(|deduplication| Step::new(greet("Eve")).deduplicate(deduplication));
    let started = client.start_many(steps).await.expect("they start");
    assert_eq!(started[0].id(), ended.id());
    assert!(!started[1].deduplicated());
    assert_eq!(started[2].id(), started[1].id(), "the newest that counts");
}

/// Behind an expired window the first of a batch is new, and the second finds it. (D8)
pub async fn behind_a_window_a_batch_starts_one_chain<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let window = Deduplication::within("key", WINDOW);
    let old = client
        .start(greet("Ada"))
        .deduplicate(window.clone())
        .await
        .expect("it starts");
    run_all(&client).await;
    fixture.elapse(client.state(), WINDOW + Duration::from_millis(50)).await;
    let steps = [(); 2].map(|()| Step::new(greet("Eve")).deduplicate(window.clone()));
    let started = client.start_many(steps).await.expect("they start");
    assert!(!started[0].deduplicated() && started[1].deduplicated());
    assert_ne!(started[0].id(), old.id());
    assert_eq!(started[0].id(), started[1].id());
}

/// Chains that are left out do not count; the others do. (D9)
pub async fn excepted_chains_do_not_count<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    let except_first = Deduplication::while_open("key").except(&first);
    let second = client
        .start(greet("Eve"))
        .deduplicate(except_first.clone())
        .await
        .expect("it starts");
    assert!(!second.deduplicated());
    let third = client
        .start(greet("Eve"))
        .deduplicate(except_first.clone())
        .await
        .expect("it is answered");
    assert_eq!(third.id(), second.id());
    let except_both = except_first.except_ids([second.id()]);
    assert!(
        !client
            .start(greet("Eve"))
            .deduplicate(except_both)
            .await
            .expect("it starts")
            .deduplicated()
    );
}

/// Keys are told apart by type within a batch too. (D10)
pub async fn types_are_told_apart_within_a_batch<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (one, two, three) = client
        .start_each((
            Step::new(greet("Ada")).deduplicate("key"),
            Step::new(Count { number: 1 }).deduplicate("key"),
            Step::new(greet("Eve")).deduplicate("key"),
        ))
        .await
        .expect("they start");
    assert!(!one.deduplicated() && !two.deduplicated() && three.deduplicated());
    assert_eq!(one.id(), three.id());
}

/// A chain holds its key until it ends, not just while its first job runs; its status is reported. (9.5 H4, H5)
pub async fn a_chain_holds_its_key_until_it_ends<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client
        .start(First { number: 1 })
        .deduplicate("key")
        .await
        .expect("it starts");
    let duplicate = async || {
        client
            .start(First { number: 9 })
            .deduplicate("key")
            .await
            .expect("it is answered")
    };
    let mut tx = client.begin().await.expect("a transaction opens");
    let first = client
        .open::<First>(&chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    first.continue_with(Second { number: 2 }).await.expect("it continues");
    tx.commit().await.expect("it commits");
    let again = duplicate().await;
    assert_eq!(
        (again.id(), again.status()),
        (chain.id(), JobStatus::Pending),
        "in its second step"
    );
    assert_eq!(claim(&client, Second::NAME).await.len(), 1);
    let again = duplicate().await;
    assert_eq!(
        (again.id(), again.status()),
        (chain.id(), JobStatus::Running),
        "in its second step"
    );
    let mut tx = client.begin().await.expect("a transaction opens");
    let second = client
        .open::<Second>(&chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let third = second.continue_with(Third { number: 3 }).await.expect("it continues");
    third.finish(3).await.expect("it finishes");
    tx.commit().await.expect("it commits");
    assert!(!duplicate().await.deduplicated(), "the chain has ended");
}

/// A blocked chain holds its key, and its status is reported.
pub async fn a_blocked_chain_holds_its_key<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let blocked = AfterOne.blocked_by(&blocker).deduplicate("key");
    let blocked = client.start(blocked).await.expect("it starts");
    let again = client
        .start(AfterOne.blocked_by(&blocker).deduplicate("key"))
        .await
        .expect("it is answered");
    assert_eq!((again.id(), again.status()), (blocked.id(), JobStatus::Blocked));
}

/// Of several chains with the key the newest that counts is given.
pub async fn the_newest_chain_that_counts_is_given<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut last = None;
    for name in ["a", "b", "c"] {
        last = Some(
            client
                .start(greet(name))
                .deduplicate("key")
                .await
                .expect("it starts")
                .id(),
        );
        run_all(&client).await;
    }
    let found = client
        .start(greet("d"))
        .deduplicate(Deduplication::forever("key"))
        .await
        .expect("it is answered");
    assert_eq!(Some(found.id()), last);
}

/// When the key is found nothing else of the request matters: not its id, not its blockers, not its input.
pub async fn a_found_key_makes_the_rest_irrelevant<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).id(own_id(1)).await.expect("it starts");
    let existing = client
        .start(AfterOne.blocked_by(&blocker).deduplicate("key"))
        .await
        .expect("it starts");
    let before = chain(&client, &existing).await;
    let nobody = ChainRef::<Greet>::new(unknown_chain());
    let odd = AfterOne
        .blocked_by(nobody)
        .id(own_id(1))
        .delay(Duration::from_secs(60))
        .deduplicate("key");
    let found = client.start(odd).await.expect("it is answered");
    assert_eq!((found.id(), found.deduplicated()), (existing.id(), true));
    assert_eq!(chain(&client, &existing).await, before);
}
