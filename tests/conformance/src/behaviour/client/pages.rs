//! Pages and the cursors between them.

use queuert::adapter::StateAdapter;
use queuert::{ChainId, Client, Cursor, Error, JobStatus, JobType, Started};

use super::assert_error;
use super::jobs::{AfterOne, Count, First, Round, greet, run_all};
use super::probe::{chain_ids, job_ids};
use crate::behaviour::PairFixture;

async fn counts<S: StateAdapter>(client: &Client<S>, number: u32) -> Vec<ChainId> {
    let started = client.start_many((0..number).map(|number| Count { number })).await;
    started.expect("they start").iter().map(Started::id).collect()
}

/// Chains come in pages of the asked size, each once, both ways; the last page has no cursor. (Q17)
pub async fn chains_come_in_pages<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids = counts(&client, 3).await;
    let first = client
        .list_chains()
        .oldest_first()
        .limit(2)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&first), ids[..2]);
    let cursor = first.next.expect("there is more");
    let second = client
        .list_chains()
        .oldest_first()
        .limit(2)
        .after(cursor)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&second), ids[2..]);
    assert!(second.next.is_none());
    let newest = client.list_chains().limit(2).await.expect("they can be listed");
    assert_eq!(chain_ids(&newest), [ids[2], ids[1]]);
    let rest = client.list_chains().limit(2).after(newest.next.expect("there is more"));
    assert_eq!(chain_ids(&rest.await.expect("they can be listed")), [ids[0]]);
}

/// A page that holds exactly what is left has no cursor.
pub async fn a_full_last_page_has_no_cursor<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    counts(&client, 4).await;
    let first = client.list_chains().limit(2).await.expect("they can be listed");
    let second = client.list_chains().limit(2).after(first.next.expect("there is more"));
    let second = second.await.expect("they can be listed");
    assert_eq!((second.items.len(), second.next), (2, None));
    assert!(
        client
            .list_chains()
            .limit(4)
            .await
            .expect("they can be listed")
            .next
            .is_none()
    );
}

/// Jobs come in pages. (Q28)
pub async fn jobs_come_in_pages<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids: Vec<_> = counts(&client, 3).await.iter().map(ChainId::first_job).collect();
    let first = client.list_jobs().limit(2).await.expect("they can be listed");
    assert_eq!(job_ids(&first), [ids[2], ids[1]]);
    let rest = client.list_jobs().limit(2).after(first.next.expect("there is more"));
    let rest = rest.await.expect("they can be listed");
    assert_eq!(job_ids(&rest), [ids[0]]);
    assert!(rest.next.is_none());
}

/// The jobs of a chain come in pages, both ways. (Q34)
pub async fn the_jobs_of_a_chain_come_in_pages<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(Round { left: 4 }).await.expect("it starts");
    run_all(&client).await;
    let list = || client.list_chain_jobs(&chain).limit(2);
    let mut seen = Vec::new();
    let mut page = list().await.expect("they can be listed");
    loop {
        seen.extend(page.items.iter().map(|job| job.chain_index));
        let Some(cursor) = page.next else { break };
        page = list().after(cursor).await.expect("they can be listed");
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    let newest = list().newest_first().await.expect("they can be listed");
    let rest = list().newest_first().after(newest.next.expect("there is more"));
    let indexes = rest
        .await
        .expect("they can be listed")
        .items
        .iter()
        .map(|job| job.chain_index)
        .collect::<Vec<_>>();
    assert_eq!(indexes, [2, 1]);
}

/// The jobs that wait for a chain come in pages. (Q45)
pub async fn blocked_jobs_come_in_pages<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("a")).await.expect("it starts");
    let steps = [(); 3].map(|()| AfterOne.blocked_by(&blocker));
    let waiting = client.start_many(steps).await.expect("they start");
    let first = client
        .list_blocked_jobs(&blocker)
        .limit(2)
        .await
        .expect("they can be listed");
    assert_eq!(
        job_ids(&first),
        [waiting[2].id().first_job(), waiting[1].id().first_job()]
    );
    let rest = client
        .list_blocked_jobs(&blocker)
        .limit(2)
        .after(first.next.expect("there is more"));
    assert_eq!(
        job_ids(&rest.await.expect("they can be listed")),
        [waiting[0].id().first_job()]
    );
}

/// Fifty rows make a page unless the caller says otherwise. (Q51)
pub async fn fifty_rows_make_a_page<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    counts(&client, 51).await;
    let chains = client.list_chains().await.expect("they can be listed");
    assert_eq!(chains.items.len(), 50);
    let rest = client.list_chains().after(chains.next.expect("there is more"));
    assert_eq!(rest.await.expect("they can be listed").items.len(), 1);
    assert_eq!(client.list_jobs().await.expect("they can be listed").items.len(), 50);
    let chain = client.start(Round { left: 50 }).await.expect("it starts");
    run_all(&client).await;
    let page = client.list_chain_jobs(&chain).await.expect("they can be listed");
    assert_eq!((page.items.len(), page.next.is_some()), (50, true));
}

/// A page has at least one row and at most a thousand.
pub async fn a_page_has_one_to_a_thousand_rows<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids = counts(&client, 1_001).await;
    for limit in [0, 1_001, usize::MAX] {
        assert_error!(
            client.list_chains().limit(limit).await,
            Error::Invalid { what: "page limit", .. }
        );
        assert_error!(
            client.list_jobs().limit(limit).await,
            Error::Invalid { what: "page limit", .. }
        );
        assert_error!(
            client.list_chain_jobs(ids[0]).limit(limit).await,
            Error::Invalid { what: "page limit", .. }
        );
        assert_error!(
            client.list_blocked_jobs(ids[0]).limit(limit).await,
            Error::Invalid { what: "page limit", .. }
        );
    }
    let page = client.list_chains().limit(1_000).await.expect("they can be listed");
    assert_eq!((page.items.len(), page.next.is_some()), (1_000, true));
    assert_eq!(
        client
            .list_jobs()
            .limit(1)
            .await
            .expect("they can be listed")
            .items
            .len(),
        1
    );
}

/// A cursor goes through text unharmed, as in the address of a page.
pub async fn a_cursor_goes_through_text<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids = counts(&client, 3).await;
    let first = client.list_chains().limit(1).await.expect("they can be listed");
    let text = first.next.expect("there is more").to_string();
    assert!(
        text.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{text} needs no escaping"
    );
    let cursor: Cursor = text.parse().expect("it is a cursor");
    assert_eq!(first.next, Some(cursor));
    let second = client
        .list_chains()
        .limit(1)
        .after(cursor)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&second), [ids[1]]);
}

/// A cursor belongs to its query: another filter, order or listing refuses it; another limit does not.
pub async fn a_cursor_belongs_to_its_query<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids = counts(&client, 3).await;
    let cursor = client
        .list_chains()
        .limit(1)
        .await
        .expect("they can be listed")
        .next
        .expect("there is more");
    let list = || client.list_chains().after(cursor);
    assert_eq!(list().limit(7).await.expect("another limit is fine").items.len(), 2);
    assert_error!(list().oldest_first().await, Error::InvalidCursor(_));
    assert_error!(list().starting_with::<First>().await, Error::InvalidCursor(_));
    assert_error!(list().statuses([JobStatus::Pending]).await, Error::InvalidCursor(_));
    assert_error!(list().ids(ids.clone()).await, Error::InvalidCursor(_));
    assert_error!(list().roots_only().await, Error::InvalidCursor(_));
    assert_error!(client.list_jobs().after(cursor).await, Error::InvalidCursor(_));
    assert_error!(
        client.list_chain_jobs(ids[0]).after(cursor).await,
        Error::InvalidCursor(_)
    );
    assert_error!(
        client.list_blocked_jobs(ids[0]).after(cursor).await,
        Error::InvalidCursor(_)
    );
    let chain = client.start(Round { left: 2 }).await.expect("it starts");
    run_all(&client).await;
    let page = client
        .list_chain_jobs(&chain)
        .limit(1)
        .await
        .expect("they can be listed");
    let of_chain = page.next.expect("there is more");
    assert_error!(
        client.list_chain_jobs(ids[0]).after(of_chain).await,
        Error::InvalidCursor(_)
    );
}

/// What is no cursor is refused when it is read.
pub async fn garbage_is_no_cursor<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    counts(&client, 2).await;
    let page = client.list_chains().limit(1).await.expect("they can be listed");
    let good = page.next.expect("there is more").to_string();
    for garbage in [
        "",
        "garbage",
        &good[1..],
        &format!("{good}0"),
        &good.replace(|c: char| c.is_ascii_digit(), "z"),
    ] {
        assert_error!(garbage.parse::<Cursor>(), Error::InvalidCursor(_));
    }
    let mut forged = good.into_bytes();
    forged[0] = if forged[0] == b'0' { b'1' } else { b'0' };
    let forged = String::from_utf8(forged)
        .expect("it is text")
        .parse::<Cursor>()
        .expect("it looks like a cursor");
    assert_error!(client.list_chains().after(forged).await, Error::InvalidCursor(_));
}

/// Chains that are started meanwhile neither shift a page nor make it miss a row.
pub async fn pages_are_stable_under_inserts<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids = counts(&client, 6).await;
    let list = || client.list_chains().limit(2);
    let mut page = list().await.expect("they can be listed");
    let mut seen = chain_ids(&page);
    while let Some(cursor) = page.next {
        counts(&client, 3).await;
        page = list().after(cursor).await.expect("they can be listed");
        seen.extend(chain_ids(&page));
    }
    seen.reverse();
    assert_eq!(seen, ids, "newest first, what is new comes before the first page");
    let mut page = client
        .list_chains()
        .oldest_first()
        .limit(4)
        .await
        .expect("they can be listed");
    let mut seen = chain_ids(&page);
    let late = counts(&client, 1).await;
    while let Some(cursor) = page.next {
        page = client
            .list_chains()
            .oldest_first()
            .limit(4)
            .after(cursor)
            .await
            .expect("they can be listed");
        seen.extend(chain_ids(&page));
    }
    assert_eq!(seen.last(), late.last(), "oldest first, what is new comes last");
    assert!(seen.is_sorted() && seen.windows(2).all(|pair| pair[0] != pair[1]));
}

/// Chains that are deleted meanwhile, also the last one of a page, do not shift the next page.
pub async fn pages_are_stable_under_deletions<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids = counts(&client, 6).await;
    let first = client
        .list_chains()
        .oldest_first()
        .limit(2)
        .await
        .expect("they can be listed");
    client
        .delete_many([ids[0], ids[1], ids[3]])
        .await
        .expect("they can be deleted");
    let cursor = first.next.expect("there is more");
    let rest = client
        .list_chains()
        .oldest_first()
        .limit(2)
        .after(cursor)
        .await
        .expect("they can be listed");
    assert_eq!(chain_ids(&rest), [ids[2], ids[4]]);
    let jobs = client.list_jobs().limit(1).await.expect("they can be listed");
    client.delete(ids[5]).await.expect("it can be deleted");
    let next = client.list_jobs().limit(1).after(jobs.next.expect("there is more"));
    assert_eq!(job_ids(&next.await.expect("they can be listed")), [ids[4].first_job()]);
}

/// Rows that were created in the same instant come once each, however the pages are cut. (9.5 H19)
pub async fn rows_of_one_instant_come_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let ids: Vec<_> = counts(&client, 25).await.iter().map(ChainId::first_job).collect();
    for limit in [1, 2, 7] {
        let list = || client.list_jobs().oldest_first().limit(limit);
        let mut page = list().await.expect("they can be listed");
        let mut seen = job_ids(&page);
        while let Some(cursor) = page.next {
            page = list().after(cursor).await.expect("they can be listed");
            seen.extend(job_ids(&page));
        }
        assert_eq!(seen, ids, "in pages of {limit}");
    }
}
