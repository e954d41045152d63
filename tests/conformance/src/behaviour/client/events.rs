//! The events and notices of each operation: which, about what, in which order.

use std::time::Duration;

use queuert::adapter::Notice;
use queuert::{Event, JobType, Step};

use super::jobs::{AfterOne, Count, First, Greet, Second, greet, run_all};
use super::probe::claim;
use super::recorder::{Recorder, available, named};
use crate::behaviour::PairFixture;

/// A started chain is created, then its job; who waits is blocked after that, and not available. (LG1, LG4)
pub async fn starting<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let events = recorder.events();
    assert!(matches!(
        &events[..],
        [Event::ChainCreated { chain, type_name }, Event::JobCreated(job)]
            if *chain == blocker.id() && type_name.as_str() == Greet::NAME
                && job.id == blocker.id().first_job() && job.chain_id == blocker.id()
                && job.type_name.as_str() == Greet::NAME && job.chain_type.as_str() == Greet::NAME
    ));
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    assert_eq!(
        recorder.named_events(),
        [
            ("chain created", waiting.id()),
            ("job created", waiting.id()),
            ("job blocked", waiting.id()),
        ]
    );
    assert!(recorder.notices().is_empty(), "a blocked job is not available");
}

/// A batch has the events of its chains in order, and one notice per type. (LG1)
pub async fn starting_a_batch<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let (a, b, c) = client
        .start_each((greet("a"), Count { number: 1 }, greet("c")))
        .await
        .expect("they start");
    let created = [a.id(), b.id(), c.id()].map(|id| [("chain created", id), ("job created", id)]);
    assert_eq!(recorder.named_events(), created.concat());
    assert_eq!(
        recorder.notices(),
        [available(Greet::NAME, 2), available(Count::NAME, 1)]
    );
}

/// A chain that was there already is deduplicated, and nobody is woken.
pub async fn deduplicating<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let steps = [(); 2].map(|()| Step::new(greet("Ada")).deduplicate("key"));
    let started = client.start_many(steps).await.expect("they start");
    let id = started[0].id();
    assert_eq!(
        recorder.named_events(),
        [("chain created", id), ("job created", id), ("chain deduplicated", id)]
    );
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
}

/// A chain that is finished from outside: its job is completed by nobody, then the chain, then who waits. (LG4, LG5)
pub async fn finishing_from_outside<F: PairFixture>(fixture: F) {
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
    tx.commit().await.expect("it commits");
    let events = recorder.events();
    assert!(matches!(
        &events[..],
        [
            Event::JobCompleted { job, worker: None, continued: false, .. },
            Event::ChainCompleted { chain, type_name, .. },
            Event::JobUnblocked { job: unblocked, chain: of, type_name: its },
        ] if job.id == blocker.id().first_job()
            && *chain == blocker.id() && type_name.as_str() == Greet::NAME
            && *unblocked == waiting.id().first_job() && *of == waiting.id() && its.as_str() == AfterOne::NAME
    ));
}

/// A chain that is continued from outside: its job is completed, then the next is created. (LG3, LG5)
pub async fn continuing_from_outside<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let second = open.continue_with(Second { number: 2 }).await.expect("it continues");
    let second = second.record().id;
    tx.commit().await.expect("it commits");
    let events = recorder.events();
    assert!(matches!(
        &events[..],
        [Event::JobCompleted { job, worker: None, continued: true, .. }, Event::JobCreated(next)]
            if job.id == chain.id().first_job()
                && next.id == second && next.chain_id == chain.id()
                && next.type_name.as_str() == Second::NAME && next.chain_type.as_str() == First::NAME
    ));
    assert_eq!(recorder.notices(), [available(Second::NAME, 1)]);
}

/// A trigger is an event about the job, and wakes a worker. (LG21)
pub async fn triggering<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let later = client
        .start(greet("Ada"))
        .delay(Duration::from_secs(60))
        .await
        .expect("it starts");
    recorder.forget();
    client
        .trigger(later.id().first_job())
        .await
        .expect("it can be triggered");
    let events = recorder.events();
    assert!(matches!(&events[..], [Event::JobTriggered(job)] if job.id == later.id().first_job()));
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
}

/// A cancellation and a deletion end the chain for who waits, and tell a running attempt. (LG20)
pub async fn cancelling_and_deleting<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    for delete in [false, true] {
        for running in [false, true] {
            let chain = client.start(greet("Ada")).await.expect("it starts");
            if running {
                claim(&client, Greet::NAME).await;
            }
            recorder.forget();
            let events: &[_] = if delete {
                client.delete(&chain).await.expect("it can be deleted");
                &["chain deleted"]
            } else {
                client.cancel(&chain).await.expect("it can be cancelled");
                &["job cancelled", "chain cancelled"]
            };
            let expected: Vec<_> = events.iter().map(|event| (*event, chain.id())).collect();
            assert_eq!(recorder.named_events(), expected);
            let mut expected = vec![Notice::ChainEnded(chain.id())];
            if running {
                expected.push(Notice::LeaseLost(chain.id().first_job()));
            }
            assert_eq!(recorder.notices(), expected);
        }
    }
}

/// A retry is an event about the chain, and wakes a worker.
pub async fn retrying<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let chain = client.start(greet("Ada")).await.expect("it starts");
    client.cancel(&chain).await.expect("it can be cancelled");
    recorder.forget();
    client.retry(&chain).await.expect("it can be retried");
    assert_eq!(recorder.named_events(), [("chain retried", chain.id())]);
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
}

/// Reading is no event.
pub async fn reading_is_silent<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let chain = client.start(greet("Ada")).await.expect("it starts");
    recorder.forget();
    client.get_chain(&chain).await.expect("it can be read");
    client.list_chains().await.expect("they can be listed");
    client.list_jobs().await.expect("they can be listed");
    client
        .get_blockers(chain.id().first_job())
        .await
        .expect("they can be read");
    client
        .wait(&chain)
        .timeout(Duration::ZERO)
        .await
        .expect_err("it is open");
    recorder.assert_silent("for reading");
}

/// Who listens to the stream hears what the observability adapter hears, from then on.
pub async fn the_stream_hears_the_same<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    client.start(greet("before")).await.expect("it starts");
    recorder.forget();
    let mut stream = client.events();
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    client.cancel(&chain).await.expect("it can be cancelled");
    run_all(&client).await;
    let heard: Vec<_> = std::iter::from_fn(|| stream.try_next()).collect();
    assert_eq!(heard, recorder.events());
    assert_eq!(named(&heard[0]), ("chain created", chain.id()));
    assert!(heard.len() > 5 && stream.missed() == 0);
}
