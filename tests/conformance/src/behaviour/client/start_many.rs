//! Starting many chains at once: all of them, or none.

use std::time::Duration;

use queuert::{ChainRef, Error, JobStatus, JobType, Step, Timestamp};

use super::assert_item_refused;
use super::jobs::{AfterAll, AfterBoth, AfterOne, Count, Greet, POLL, crew, greet, greeting, run_all};
use super::probe::{chain, chain_count, job, own_id, unknown_chain};
use super::recorder::Recorder;
use crate::behaviour::PairFixture;

/// A batch gives its chains in the order of the request, each with its own input and id. (SC10)
pub async fn a_batch_keeps_its_order<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let names = ["Ada", "Grace", "Edsger"];
    let started = client.start_many(names.map(greet)).await.expect("they start");
    assert_eq!(started.len(), 3);
    for (started, name) in started.iter().zip(names) {
        assert_eq!((started.status(), started.deduplicated()), (JobStatus::Pending, false));
        let chain = client
            .get_chain(started)
            .await
            .expect("it can be read")
            .expect("it exists");
        assert_eq!(chain.input, greet(name));
    }
    assert!(started.is_sorted_by(|a, b| a.id() < b.id()), "ids ascend: {started:?}");
}

/// An empty batch starts nothing and says nothing. (SC11)
pub async fn an_empty_batch_starts_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let none: [Greet; 0] = [];
    assert!(client.start_many(none).await.expect("nothing is refused").is_empty());
    recorder.assert_silent("for an empty batch");
    assert_eq!(chain_count(&client).await, 0);
}

/// The chains of a batch may wait for the same chain. (SC13, B8)
pub async fn a_batch_may_share_a_blocker<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let steps = [AfterOne.blocked_by(&blocker), AfterOne.blocked_by(&blocker)];
    let started = client.start_many(steps).await.expect("they start");
    assert!(started.iter().all(|started| started.status() == JobStatus::Blocked));
    run_all(&client).await;
    for waiting in &started {
        assert_eq!(client.wait(waiting).await.expect("it ended"), greeting("Ada"));
    }
}

/// Each chain of a batch has a schedule of its own. (SC14)
pub async fn a_batch_may_mix_schedules<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let hour = Duration::from_secs(3_600);
    let now = chain(&client, &client.start(Count { number: 0 }).await.expect("it starts"))
        .await
        .created_at;
    let in_two_hours = now.saturating_add(2 * hour);
    let steps = [
        Step::new(greet("now")),
        Step::new(greet("in an hour")).delay(hour),
        Step::new(greet("in two hours")).at(in_two_hours),
        Step::new(greet("long ago")).at(Timestamp::from_micros(0)),
    ];
    let started = client.start_many(steps).await.expect("they start");
    let mut scheduled = Vec::new();
    for started in &started {
        assert_eq!(started.status(), JobStatus::Pending);
        scheduled.push(job(&client, started.id().first_job()).await.scheduled_at);
    }
    let soon = now.saturating_add(hour / 2);
    assert!((now..soon).contains(&scheduled[0]), "{scheduled:?}");
    assert!(
        (now.saturating_add(hour)..soon.saturating_add(hour)).contains(&scheduled[1]),
        "{scheduled:?}"
    );
    assert_eq!(scheduled[2], in_two_hours);
    assert!((now..soon).contains(&scheduled[3]), "{scheduled:?}");
}

/// Chains of different types can be started together, and come back in their places. (SC15)
pub async fn different_types_start_together<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (ada, one, eve) = client
        .start_each((greet("Ada"), Count { number: 1 }, greet("Eve")))
        .await
        .expect("they start");
    assert_eq!(chain(&client, &ada).await.type_name.as_str(), Greet::NAME);
    assert_eq!(chain(&client, &one).await.type_name.as_str(), Count::NAME);
    run_all(&client).await;
    assert_eq!(client.wait(ada).await.expect("it ended"), greeting("Ada"));
    assert_eq!(client.wait(one).await.expect("it ended"), 1);
    assert_eq!(client.wait(eve).await.expect("it ended"), greeting("Eve"));
}

/// A batch may mix chains that wait with chains that do not. (SC16)
pub async fn a_batch_may_mix_blocked_and_unblocked<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let none: [ChainRef<Greet>; 0] = [];
    let steps = [AfterAll.blocked_by([blocker.chain()]), AfterAll.blocked_by(none)];
    let started = client.start_many(steps).await.expect("they start");
    let statuses: Vec<_> = started.iter().map(queuert::Started::status).collect();
    assert_eq!(statuses, [JobStatus::Blocked, JobStatus::Pending]);
    let (waiting, free) = client
        .start_each((AfterOne.blocked_by(&blocker), greet("Eve")))
        .await
        .expect("they start");
    assert_eq!(
        (waiting.status(), free.status()),
        (JobStatus::Blocked, JobStatus::Pending)
    );
}

/// A chain may wait for an earlier one of the same batch. (B7)
pub async fn a_chain_may_wait_for_an_earlier_one_of_its_batch<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = ChainRef::<Greet>::new(own_id(1).as_chain());
    let (_, waiting) = client
        .start_each((Step::new(greet("Ada")).id(own_id(1)), AfterOne.blocked_by(first)))
        .await
        .expect("they start");
    assert_eq!(waiting.status(), JobStatus::Blocked);
    run_all(&client).await;
    assert_eq!(client.wait(waiting).await.expect("it ended"), greeting("Ada"));
}

/// Workers complete the chains of a batch with the outputs of what they waited for. (SC17, B5)
pub async fn workers_complete_dependants_with_the_outputs<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let workers = crew(&client).concurrency(4).start().await.expect("the crew starts");
    let names = ["a", "b", "c", "d", "e"];
    let greets = client.start_many(names.map(greet)).await.expect("they start");
    let count = client.start(Count { number: 7 }).await.expect("it starts");
    let (all, both, one) = client
        .start_each((
            AfterAll.blocked_by(&greets),
            AfterBoth.blocked_by((&greets[1], &count)),
            AfterOne.blocked_by(&greets[2]),
        ))
        .await
        .expect("they start");
    let all = client.wait(&all).poll_interval(POLL).await.expect("it ends");
    assert_eq!(all, names.map(greeting), "in the declared order");
    let both = client.wait(&both).poll_interval(POLL).await.expect("it ends");
    assert_eq!(both, format!("{} 7", greeting("b")));
    assert_eq!(
        client.wait(&one).poll_interval(POLL).await.expect("it ends"),
        greeting("c")
    );
    workers.stop().await;
}

/// Workers complete a whole batch, each chain once. (SC18)
pub async fn workers_complete_a_whole_batch<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let workers = crew(&client).concurrency(4).start().await.expect("the crew starts");
    let started = client
        .start_many((0..50).map(|number| Count { number }))
        .await
        .expect("they start");
    for (number, started) in (0..).zip(&started) {
        let output = client.wait(started).poll_interval(POLL).await.expect("it ends");
        assert_eq!(output, number);
        assert_eq!(job(&client, started.id().first_job()).await.claims, 1);
    }
    workers.stop().await;
}

/// Some chains of a batch may have supplied ids, the others get new ones. (SC23)
pub async fn a_batch_may_supply_some_ids<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let steps = [
        Step::new(greet("Ada")).id(own_id(1)),
        Step::new(greet("Grace")),
        Step::new(greet("Edsger")).id(own_id(2)),
    ];
    let started = client.start_many(steps).await.expect("they start");
    assert_eq!(started[0].id(), own_id(1).as_chain());
    assert_eq!(started[2].id(), own_id(2).as_chain());
    assert_eq!(started[1].id().as_uuid().get_version_num(), 7);
    assert_eq!(chain_count(&client).await, 3);
}

/// One taken id refuses the whole batch.
pub async fn one_taken_id_refuses_the_batch<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    client.start(greet("Ada")).id(own_id(1)).await.expect("it starts");
    recorder.forget();
    let steps = [
        Step::new(greet("Grace")),
        Step::new(greet("Eve")).id(own_id(1)),
        Step::new(greet("Edsger")),
    ];
    assert_item_refused!(client.start_many(steps).await, 1, Error::IdTaken(id) if id == own_id(1));
    assert_eq!(chain_count(&client).await, 1);
    recorder.assert_silent("for a refused batch");
}

/// The error of a refused batch says which item it is about, by place and id, whether the client refuses it or the store.
pub async fn a_refused_item_is_named<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("Ada")).id(own_id(1)).await.expect("it starts");
    let by_the_store = client
        .start_many([
            Step::new(greet("Grace")),
            Step::new(greet("Eve")),
            Step::new(greet("Ada")).id(own_id(1)),
        ])
        .await;
    let by_the_client = client
        .start_each((
            Step::new(greet("Grace")),
            Count { number: 1 },
            Step::new(greet("Eve")).id(own_id(1)).max_attempts(0),
        ))
        .await;
    for refused in [by_the_store.map(drop), by_the_client.map(drop)] {
        let error = refused.expect_err("it is refused");
        assert!(
            matches!(&error, Error::InBatch { index: 2, id, .. } if *id == own_id(1)),
            "{error:?}"
        );
        let said = error.to_string();
        assert!(
            said.contains("item 2") && said.contains(&own_id(1).to_string()),
            "{said}"
        );
    }
}

/// An id that is supplied twice in one batch is taken the second time, and nothing is started.
pub async fn an_id_twice_in_a_batch_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let steps = [
        Step::new(greet("Ada")).id(own_id(1)),
        Step::new(greet("Eve")).id(own_id(1)),
    ];
    assert_item_refused!(client.start_many(steps).await, 1, Error::IdTaken(id) if id == own_id(1));
    assert_eq!(chain_count(&client).await, 0);
}

/// One missing blocker refuses the whole batch. (9.5 H20)
pub async fn one_missing_blocker_refuses_the_batch<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let nobody = ChainRef::<Greet>::new(unknown_chain());
    let refused = client
        .start_each((greet("Ada"), Count { number: 1 }, AfterOne.blocked_by(nobody)))
        .await;
    assert_item_refused!(refused, 2, Error::BlockerNotFound { chain, .. } if chain == unknown_chain());
    assert_eq!(chain_count(&client).await, 0);
    recorder.assert_silent("for a refused batch");
}

/// One bad deduplication key refuses the whole batch.
pub async fn one_bad_key_refuses_the_batch<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let steps = [
        Step::new(greet("Ada")).deduplicate("good"),
        Step::new(greet("Eve")).deduplicate(""),
    ];
    assert_item_refused!(
        client.start_many(steps).await,
        1,
        Error::Invalid {
            what: "deduplication key",
            ..
        }
    );
    assert_eq!(chain_count(&client).await, 0);
}

/// A refused batch leaves no key behind: the next starter of it starts a chain.
pub async fn a_refused_batch_leaves_no_key_behind<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("Ada")).id(own_id(1)).await.expect("it starts");
    let steps = [
        Step::new(greet("Grace")).deduplicate("key"),
        Step::new(greet("Eve")).id(own_id(1)),
    ];
    assert_item_refused!(client.start_many(steps).await, 1, Error::IdTaken(_));
    let started = client
        .start(greet("Edsger"))
        .deduplicate("key")
        .await
        .expect("it starts");
    assert!(!started.deduplicated());
}

/// A batch may be large.
pub async fn a_batch_may_be_large<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client
        .start_many((0..2_500).map(|number| Count { number }))
        .await
        .expect("they start");
    assert_eq!(started.len(), 2_500);
    for place in [0, 999, 1_000, 2_499] {
        let chain = client
            .get_chain(&started[place])
            .await
            .expect("it can be read")
            .expect("it exists");
        assert_eq!(chain.input.number as usize, place);
    }
}
