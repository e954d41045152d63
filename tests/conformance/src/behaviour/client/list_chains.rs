//! Listing chains.

use std::time::Duration;

use queuert::{ChainId, JobStatus, JobType, Timestamp};

use super::jobs::{AfterAll, AfterOne, Count, Fail, First, Greet, Second, greet, run_all};
use super::probe::{chain, chain_ids, claim, own_id, unknown_chain};
use crate::behaviour::PairFixture;

/// An empty store has no chains. (Q10)
pub async fn an_empty_store_has_none<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let page = client.list_chains().await.expect("they can be listed");
    assert!(page.items.is_empty() && page.next.is_none());
}

/// All chains are listed, newest first; the other way round on request. (Q11, Q16)
pub async fn the_newest_comes_first<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (a, b, c) = client
        .start_each((greet("a"), First { number: 1 }, greet("c")))
        .await
        .expect("they start");
    run_all(&client).await;
    let page = client.list_chains().await.expect("they can be listed");
    assert_eq!(
        chain_ids(&page),
        [c.id(), b.id(), a.id()],
        "one row per chain, however many jobs it has"
    );
    let page = client.list_chains().newest_first().await.expect("they can be listed");
    assert_eq!(chain_ids(&page), [c.id(), b.id(), a.id()]);
    let page = client.list_chains().oldest_first().await.expect("they can be listed");
    assert_eq!(chain_ids(&page), [a.id(), b.id(), c.id()]);
}

/// Chains are filtered by the type that they start with, one or several. (Q12)
pub async fn chains_are_filtered_by_type<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (greeting, count, first) = client
        .start_each((greet("a"), Count { number: 1 }, First { number: 1 }))
        .await
        .expect("they start");
    run_all(&client).await;
    let list = || client.list_chains().oldest_first();
    let page = list().starting_with::<Count>().await.expect("they can be listed");
    assert_eq!(chain_ids(&page), [count.id()]);
    let page = list()
        .starting_with::<First>()
        .starting_with::<Greet>()
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), [greeting.id(), first.id()]);
    let page = list()
        .types([Greet::NAME, Count::NAME])
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), [greeting.id(), count.id()]);
    let page = list().types([Second::NAME]).await.expect("they can be listed");
    assert!(page.items.is_empty(), "no chain starts with a later step");
}

/// Chains are filtered by their ids, and by the ids of any of their jobs. (Q13, Q19)
pub async fn chains_are_filtered_by_id<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (a, b, _) = client
        .start_each((greet("a"), First { number: 1 }, greet("c")))
        .await
        .expect("they start");
    run_all(&client).await;
    let page = client
        .list_chains()
        .ids([a.id(), unknown_chain(), b.id()])
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), [b.id(), a.id()]);
    let jobs = client.list_chain_jobs(&b).await.expect("they can be listed");
    let named = [jobs.items[1].id, jobs.items[2].id, a.id().first_job(), own_id(9)];
    let page = client
        .list_chains()
        .containing(named)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), [b.id(), a.id()], "each chain once");
}

/// Only roots are listed on request: chains that are nobody's blocker. (Q14)
pub async fn roots_are_nobodys_blocker<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("a")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let alone = client.start(greet("b")).await.expect("it starts");
    for _ in 0..2 {
        let page = client.list_chains().roots_only().await.expect("they can be listed");
        assert_eq!(chain_ids(&page), [alone.id(), waiting.id()]);
        run_all(&client).await;
    }
}

/// Chains are filtered by the status of their latest job. (Q15)
pub async fn chains_are_filtered_by_status<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let completed = client.start(First { number: 1 }).await.expect("it starts");
    let dead = client.start(Fail { because: "so".into() }).await.expect("it starts");
    run_all(&client).await;
    let cancelled = client.start(Count { number: 1 }).await.expect("it starts");
    client.cancel(&cancelled).await.expect("it can be cancelled");
    let running = client.start(greet("a")).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    let pending = client.start(greet("b")).await.expect("it starts");
    let blocked = client.start(AfterAll.blocked_by([&pending])).await.expect("it starts");
    for (status, id) in [
        (JobStatus::Completed, completed.id()),
        (JobStatus::Dead, dead.id()),
        (JobStatus::Cancelled, cancelled.id()),
        (JobStatus::Running, running.id()),
        (JobStatus::Pending, pending.id()),
        (JobStatus::Blocked, blocked.id()),
    ] {
        let page = client
            .list_chains()
            .statuses([status])
            .await
            .expect("they can be listed");
        assert_eq!(chain_ids(&page), [id], "{status}");
    }
    let stopped = client.list_chains().statuses([JobStatus::Dead, JobStatus::Cancelled]);
    let page = stopped.await.expect("they can be listed");
    assert_eq!(chain_ids(&page), [cancelled.id(), dead.id()]);
    let page = client
        .list_chains()
        .statuses(JobStatus::ALL)
        .await
        .expect("they can be listed");
    assert_eq!(page.items.len(), 6);
}

/// Chains are filtered by when they were created, both ends included. (Q18)
pub async fn chains_are_filtered_by_time<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut created = Vec::new();
    for name in ["a", "b", "c"] {
        let started = client.start(greet(name)).await.expect("it starts");
        created.push(chain(&client, &started).await);
        fixture.elapse(client.state(), Duration::from_millis(3)).await;
    }
    let ids: Vec<ChainId> = created.iter().map(|chain| chain.id).collect();
    let list = || client.list_chains().oldest_first();
    let page = list()
        .created_from(created[1].created_at)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), ids[1..]);
    let page = list()
        .created_to(created[1].created_at)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), ids[..2]);
    let at = created[1].created_at;
    let page = list()
        .created_from(at)
        .created_to(at)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&page), ids[1..2]);
    let future = created[2].created_at.saturating_add(Duration::from_secs(3_600));
    assert!(
        list()
            .created_from(future)
            .await
            .expect("they can be listed")
            .items
            .is_empty()
    );
    let page = list()
        .created_to(Timestamp::from_micros(0))
        .await
        .expect("they can be listed");
    assert!(page.items.is_empty());
}

/// Filters narrow one another.
pub async fn filters_narrow_one_another<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let greets = client.start_many(["a", "b"].map(greet)).await.expect("they start");
    client.start(Count { number: 1 }).await.expect("it starts");
    client.cancel(&greets[0]).await.expect("it can be cancelled");
    let list = || {
        client
            .list_chains()
            .starting_with::<Greet>()
            .statuses([JobStatus::Pending])
    };
    assert_eq!(chain_ids(&list().await.expect("they can be listed")), [greets[1].id()]);
    let page = list().ids([greets[0].id()]).await.expect("they can be listed");
    assert!(page.items.is_empty());
    let containing = list().containing([greets[1].id().first_job()]).ids([greets[0].id()]);
    assert!(containing.await.expect("they can be listed").items.is_empty());
}

/// A filter that admits nothing gives nothing: an empty list is not the absence of a filter. (9.5 H24)
pub async fn an_empty_filter_admits_nothing<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("a")).await.expect("it starts");
    let list = || client.list_chains();
    for (request, what) in [
        (list().ids([]), "ids"),
        (list().containing([]), "jobs"),
        (list().types([] as [&'static str; 0]), "types"),
        (list().statuses([]), "statuses"),
    ] {
        assert!(request.await.expect("they can be listed").items.is_empty(), "{what}");
    }
}
