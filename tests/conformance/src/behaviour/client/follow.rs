//! Lists that are followed: every row once, also if it commits late.

use queuert::adapter::StateAdapter;
use queuert::{ChainId, Client, Cursor, Error, JobId, JobStatus, JobType, Started};
use tokio::sync::watch;

use super::assert_error;
use super::jobs::{AfterOne, Count, First, Second, greet, run_all};
use crate::behaviour::PairFixture;
use crate::bench::TICK;

/// Follows all chains, and remembers what it was given. Its cursor is text between two pages.
#[derive(Default)]
struct Follower {
    cursor: Option<String>,
    seen: Vec<ChainId>,
}

impl Follower {
    /// Reads all pages up to the watermark.
    async fn read<S: StateAdapter>(&mut self, client: &Client<S>) {
        loop {
            let cursor = self.cursor.as_ref().map(|text| text.parse().expect("it is a cursor"));
            let page = client.list_chains().limit(2).follow(cursor).await;
            let page = page.expect("chains can be followed");
            self.cursor = Some(page.next.to_string());
            self.seen.extend(page.items.iter().map(|chain| chain.id));
            if page.items.is_empty() {
                return;
            }
        }
    }

    /// Reads until it was given so many chains, and once more.
    async fn read_up_to<F: PairFixture>(&mut self, fixture: &F, client: &Client<F::State>, count: usize) {
        for _ in 0..1_000 {
            let complete = self.seen.len() >= count;
            self.read(client).await;
            if complete {
                return;
            }
            fixture.elapse(client.state(), TICK).await;
        }
        panic!("the follower was given {:?}, and never {count} chains", self.seen);
    }
}

/// Chains are given oldest first, in pages, and new ones from where the follower stopped.
pub async fn chains_are_followed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut follower = Follower::default();
    let mut ids = Vec::new();
    for round in 1..=3 {
        for number in 0..5 {
            ids.push(client.start(Count { number }).await.expect("it starts").id());
            fixture.elapse(client.state(), TICK).await;
        }
        follower.read_up_to(&fixture, &client, 5 * round).await;
        assert_eq!(follower.seen, ids);
    }
}

/// A chain whose transaction commits late is given to a follower that has read meanwhile.
pub async fn a_late_commit_is_not_missed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let early = client.start(Count { number: 0 }).await.expect("it starts").id();
    let mut follower = Follower::default();
    follower.read_up_to(&fixture, &client, 1).await;
    let mut tx = client.begin().await.expect("a transaction can be opened");
    let late = client.start(Count { number: 1 }).within(&mut tx).await;
    let late = late.expect("it starts").id();
    fixture.elapse(client.state(), TICK).await;
    let mut ids = vec![early, late];
    if fixture.capabilities().concurrent_writers {
        let meanwhile = client.start(Count { number: 2 }).await.expect("it starts");
        ids.push(meanwhile.id());
    }
    fixture.elapse(client.state(), TICK).await;
    follower.read(&client).await;
    tx.commit().await.expect("it commits");
    follower.read_up_to(&fixture, &client, ids.len()).await;
    assert_eq!(follower.seen, ids);
}

/// A job that continues a chain in a transaction that commits late is given to a follower that has read meanwhile.
pub async fn a_late_continuation_is_not_missed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    fixture.elapse(client.state(), TICK).await;
    let mut tx = client.begin().await.expect("a transaction can be opened");
    let first = client.open::<First>(&chain).within(&mut tx).await;
    let second = first
        .expect("it can be opened")
        .continue_with(Second { number: 2 })
        .await;
    let second = second.expect("it continues").record().id;
    fixture.elapse(client.state(), TICK).await;
    let (mut cursor, mut seen): (Option<Cursor>, Vec<JobId>) = (None, Vec::new());
    let mut tx = Some(tx);
    for _ in 0..1_000 {
        let page = client.list_jobs().follow(cursor).await.expect("jobs can be followed");
        cursor = Some(page.next);
        seen.extend(page.items.iter().map(|job| job.id));
        if let Some(tx) = tx.take() {
            tx.commit().await.expect("it commits");
        }
        if seen.len() == 2 {
            break;
        }
        fixture.elapse(client.state(), TICK).await;
    }
    assert_eq!(seen, [chain.id().first_job(), second]);
}

/// A follower that begins with an empty store has a cursor to go on from, and is given what comes.
pub async fn an_empty_store_is_followed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let page = client.list_chains().follow(None).await.expect("chains can be followed");
    assert!(page.items.is_empty());
    let mut follower = Follower {
        cursor: Some(page.next.to_string()),
        ..Follower::default()
    };
    fixture.elapse(client.state(), TICK).await;
    let chain = client.start(greet("Ada")).await.expect("it starts").id();
    follower.read_up_to(&fixture, &client, 1).await;
    assert_eq!(follower.seen, [chain]);
}

/// The jobs that wait for a chain are followed like others.
pub async fn blocked_jobs_are_followed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let (mut cursor, mut seen, mut jobs): (Option<Cursor>, Vec<JobId>, Vec<JobId>) = Default::default();
    for _ in 0..3 {
        let dependant = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
        jobs.push(dependant.id().first_job());
        for _ in 0..1_000 {
            fixture.elapse(client.state(), TICK).await;
            let page = client.list_blocked_jobs(&blocker).follow(cursor).await;
            let page = page.expect("jobs can be followed");
            cursor = Some(page.next);
            seen.extend(page.items.iter().map(|job| job.id));
            if seen.len() >= jobs.len() {
                break;
            }
        }
        assert_eq!(seen, jobs);
    }
}

/// A follower is given a chain once, whatever becomes of the chain later.
pub async fn a_change_is_not_given_again<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(First { number: 1 }).await.expect("it starts");
    let mut follower = Follower::default();
    follower.read_up_to(&fixture, &client, 1).await;
    run_all(&client).await;
    fixture.elapse(client.state(), TICK).await;
    follower.read(&client).await;
    assert_eq!(follower.seen.len(), 1);
}

/// Filters for what may change, and the cursor of a page, are refused. So are cursors of other followers and of lists.
pub async fn a_follower_cannot_be_led_astray<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start_many((0..3).map(|number| Count { number })).await;
    let ids: Vec<ChainId> = started.expect("they start").iter().map(Started::id).collect();
    let refused = |error: &str, what: &str| assert!(error.contains(what) && error.contains("leave"), "{error}");
    let chains = || client.list_chains();
    for (request, what) in [
        (chains().statuses([JobStatus::Completed]).follow(None), "`statuses`"),
        (chains().containing([ids[0].first_job()]).follow(None), "`containing`"),
        (chains().roots_only().follow(None), "`roots_only`"),
    ] {
        let error = request.await.expect_err("the filter is refused");
        assert!(matches!(&error, Error::Invalid { what: "follow", .. }), "{error:?}");
        refused(&error.to_string(), what);
    }
    let jobs = client.list_jobs().statuses([JobStatus::Dead]).follow(None);
    assert_error!(jobs.await, Error::Invalid { what: "follow", .. });

    let list = chains().oldest_first().limit(1).await.expect("chains can be listed");
    let cursor = list.next.expect("there is more");
    assert_error!(chains().limit(1).follow(Some(cursor)).await, Error::InvalidCursor(_));
    assert_error!(
        chains().after(cursor).follow(None).await,
        Error::Invalid { what: "follow", .. }
    );

    let own = chains().follow(None).await.expect("chains can be followed").next;
    let other = chains().starting_with::<Count>().follow(Some(own));
    assert_error!(other.await, Error::InvalidCursor(_));
    assert_error!(client.list_jobs().follow(Some(own)).await, Error::InvalidCursor(_));
    assert_error!(chains().oldest_first().after(own).await, Error::InvalidCursor(_));
    // The size of a page is no filter, and the direction is always the same.
    let same = chains().newest_first().limit(7).follow(Some(own));
    same.await.expect("the cursor fits");
}

/// How many tasks write at once, and how often each.
const WRITERS: usize = 6;
const ROUNDS: usize = 6;

/// Many write at once: by themselves, in transactions that stay open while the follower reads, with keys, and in
/// transactions that are rolled back. The follower is given every chain that comes to be exactly once.
pub async fn every_chain_is_followed_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (reads, _) = watch::channel(0_usize);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(client.clone(), writer, reads.subscribe())))
        .collect();
    let mut follower = Follower::default();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        follower.read(&client).await;
        reads.send_modify(|times| *times += 1);
        fixture.elapse(client.state(), TICK).await;
        tokio::task::yield_now().await;
    }
    let mut ids = Vec::new();
    for writer in writers {
        ids.extend(writer.await.expect("no writer fails"));
    }
    follower.read_up_to(&fixture, &client, ids.len()).await;
    follower.seen.sort();
    ids.sort();
    assert_eq!(follower.seen, ids);
}

async fn write<S: StateAdapter>(client: Client<S>, writer: usize, mut reads: watch::Receiver<usize>) -> Vec<ChainId> {
    let mut ids = Vec::new();
    for round in 0..ROUNDS {
        let number = u32::try_from(writer * ROUNDS + round).expect("it is a small number");
        if (writer + round).is_multiple_of(3) {
            ids.push(client.start(Count { number }).await.expect("it starts").id());
            continue;
        }
        let mut tx = client.begin().await.expect("a transaction can be opened");
        let plain = client.start(Count { number }).within(&mut tx).await;
        let keyed = client.start(Count { number }).deduplicate(number.to_string());
        let keyed = keyed.within(&mut tx).await;
        let before = *reads.borrow();
        let again = reads.wait_for(|times| *times >= before + 2).await;
        again.expect("the follower reads until all have written");
        if (writer + round) % 3 == 1 {
            tx.rollback().await.expect("it rolls back");
        } else {
            tx.commit().await.expect("it commits");
            ids.extend([plain, keyed].map(|started| started.expect("it starts").id()));
        }
    }
    ids
}
