//! One chain per key.

use std::pin::pin;

use queuert::adapter::CreatedChain;
use queuert::{ChainId, Deduplication, JobStatus};

use crate::bench::{Bench, End, LONG, SHORT, TICK};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

async fn start_keyed<F: StateFixture>(bench: &Bench<F>, deduplication: Deduplication) -> CreatedChain {
    bench
        .create_one(draft("mail").deduplicate(deduplication))
        .await
        .expect("no refusal")
}

async fn assert_found<F: StateFixture>(bench: &Bench<F>, deduplication: Deduplication, chain: ChainId) {
    let created = start_keyed(bench, deduplication).await;
    assert!(created.deduplicated, "the chain was there already");
    assert_eq!(created.id, chain);
}

async fn assert_new<F: StateFixture>(bench: &Bench<F>, deduplication: Deduplication) -> ChainId {
    let created = start_keyed(bench, deduplication).await;
    assert!(!created.deduplicated, "no chain counts");
    assert_eq!(created.status, JobStatus::Pending);
    created.id
}

fn open(key: &str) -> Deduplication {
    Deduplication::while_open(key)
}

/// A key that is taken gives the chain that has it; another key starts a chain. (S7)
pub async fn a_taken_key_gives_the_chain_that_has_it<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("mail").input("1").deduplicate("key")).await;
    let again = draft("mail").input("2").deduplicate("key");
    let unused = again.chain_id();
    let created = bench.create_one(again).await.expect("no refusal");
    let expected = CreatedChain {
        id: chain,
        status: JobStatus::Pending,
        deduplicated: true,
    };
    assert_eq!(created, expected);
    assert_eq!(bench.chain(chain).await.input.as_str(), "1", "the chain is left alone");
    assert!(!bench.exists(unused).await);
    assert_ne!(assert_new(&bench, open("other")).await, chain);
    assert_eq!(bench.list_chains(&super::list_chains::query()).await.len(), 2);
}

/// A key belongs to a type: another type may have the same.
pub async fn a_key_belongs_to_a_type<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_as(draft("mail").deduplicate("key")).await;
    bench.start_as(draft("other").deduplicate("key")).await;
}

/// Keys are told apart byte for byte, up to the longest that is accepted.
pub async fn keys_are_exact_up_to_their_longest<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let longest = "k".repeat(Deduplication::MAX_KEY_LENGTH - 1);
    let mut chains = Vec::new();
    let keys = [
        "key".to_owned(),
        "Key".to_owned(),
        "key ".to_owned(),
        "ke\u{301}y".to_owned(),
        "kéy".to_owned(),
    ];
    let keys: Vec<_> = keys
        .into_iter()
        .chain([format!("{longest}a"), format!("{longest}b")])
        .collect();
    for key in &keys {
        chains.push(assert_new(&bench, open(key)).await);
    }
    for (key, chain) in keys.iter().zip(chains) {
        assert_found(&bench, open(key), chain).await;
        assert_eq!(bench.chain(chain).await.deduplication_key.as_ref(), Some(key));
    }
}

/// While-open covers blocked, pending and running chains, and no others. (S11)
pub async fn while_open_covers_open_chains_only<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    let attempt = bench.attempt("mail").await;
    assert_found(&bench, open("key"), chain).await;
    bench.finish(&attempt).await;
    let second = assert_new(&bench, open("key")).await;
    bench.cancel(&[second]).await.expect("the chain is open");
    let third = assert_new(&bench, open("key")).await;
    bench.apply(&bench.attempt("mail").await, draft::bury("fatal")).await;
    let fourth = assert_new(&bench, open("key")).await;
    assert!(third != fourth);
    let blocker = bench.start("blocker").await;
    let blocked = bench
        .start_as(draft("mail").blocked_by(&[blocker]).deduplicate("blocked"))
        .await;
    let found = start_keyed(&bench, open("blocked")).await;
    assert_eq!((found.id, found.status), (blocked, JobStatus::Blocked));
}

/// Forever covers chains that have ended, too. (S11)
pub async fn forever_covers_ended_chains_too<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    bench.complete_outside(chain, "1").await;
    let found = start_keyed(&bench, Deduplication::forever("key")).await;
    assert_eq!(
        (found.id, found.status, found.deduplicated),
        (chain, JobStatus::Completed, true)
    );
}

/// A chain of several steps is covered until it ends, not just its first job. (H4, I7)
pub async fn a_chain_is_covered_until_it_ends<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    bench.continue_with(&bench.attempt("mail").await, "two").await;
    assert_found(&bench, open("key"), chain).await;
    bench.continue_with(&bench.attempt("two").await, "three").await;
    let attempt = bench.attempt("three").await;
    assert_found(&bench, open("key"), chain).await;
    bench.finish(&attempt).await;
    assert_new(&bench, open("key")).await;
}

/// The status of a chain that was there is that of its latest job. (H5)
pub async fn a_chain_that_was_there_shows_its_own_status<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert_new(&bench, open("key")).await;
    bench.continue_with(&bench.attempt("mail").await, "two").await;
    assert_eq!(start_keyed(&bench, open("key")).await.status, JobStatus::Pending);
    bench.attempt("two").await;
    assert_eq!(start_keyed(&bench, open("key")).await.status, JobStatus::Running);
}

/// A chain that is left out does not count. (S12)
pub async fn a_chain_that_is_left_out_does_not_count<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    assert_found(&bench, open("key"), chain).await;
    let second = assert_new(&bench, open("key").except_ids([chain])).await;
    assert_found(&bench, open("key").except_ids([chain]), second).await;
    assert_new(&bench, open("key").except_ids([chain, second])).await;
}

/// Of several chains that count the newest is given.
pub async fn the_newest_chain_is_given<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut newest = assert_new(&bench, open("key")).await;
    for _ in 0..3 {
        bench.complete_outside(newest, "1").await;
        bench.elapse(TICK).await;
        newest = assert_new(&bench, open("key")).await;
    }
    assert_found(&bench, Deduplication::forever("key"), newest).await;
}

/// Of ended chains, only those created within the window count. (S20)
pub async fn ended_chains_count_within_the_window<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, Deduplication::within("key", LONG)).await;
    bench.complete_outside(chain, "1").await;
    assert_found(&bench, Deduplication::within("key", LONG), chain).await;
    bench.elapse(SHORT * 2).await;
    assert_found(&bench, Deduplication::within("key", LONG), chain).await;
    assert_new(&bench, Deduplication::within("key", SHORT)).await;
}

/// An open chain counts although it is older than the window: a key has one open chain. (S21, I7)
pub async fn an_open_chain_counts_past_the_window<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let window = Deduplication::within("key", SHORT);
    let chain = assert_new(&bench, window.clone()).await;
    bench.elapse(SHORT * 2).await;
    assert_found(&bench, window.clone(), chain).await;
    bench.continue_with(&bench.attempt("mail").await, "two").await;
    assert_found(&bench, window.clone(), chain).await;
    bench.complete_outside(chain, "1").await;
    let second = assert_new(&bench, window.clone()).await;
    assert_found(&bench, window, second).await;
}

/// A cancelled or dead chain counts within its window, as a completed one does, and a retried one while it is open.
pub async fn a_stopped_chain_counts_within_its_window<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (short, long) = (Deduplication::within("key", SHORT), Deduplication::within("key", LONG));
    let chain = assert_new(&bench, long.clone()).await;
    bench.cancel(&[chain]).await.expect("the chain is open");
    assert_found(&bench, long.clone(), chain).await;
    bench.elapse(SHORT * 2).await;
    bench.retry(&[chain]).await.expect("the key is free");
    assert_found(&bench, short.clone(), chain).await;
    bench.apply(&bench.attempt("mail").await, draft::bury("fatal")).await;
    assert_found(&bench, long, chain).await;
    let second = assert_new(&bench, short).await;
    let refused = bench.retry(&[chain]).await.expect_err("another chain has the key");
    let taken = queuert::adapter::Refusal::KeyTaken { chain, holder: second };
    assert_eq!(refused, taken);
}

/// A chain that was left out still counts for everyone else, also after the one that was started beside it has ended.
pub async fn a_chain_that_was_left_out_counts_for_others<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    bench.elapse(TICK).await;
    let beside = assert_new(&bench, open("key").except_ids([chain])).await;
    assert_found(&bench, open("key"), beside).await;
    assert_found(&bench, open("key").except_ids([beside]), chain).await;
    bench.complete_outside(beside, "1").await;
    assert_found(&bench, open("key"), chain).await;
    bench.complete_outside(chain, "1").await;
    assert_new(&bench, open("key")).await;
}

/// An earlier chain of the same call can be left out too.
pub async fn an_earlier_chain_of_the_call_can_be_left_out<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let first = draft("mail").deduplicate("key");
    let beside = draft("mail").deduplicate(open("key").except_ids([first.chain_id()]));
    let third = draft("mail").deduplicate("key");
    let ids = [first.chain_id(), beside.chain_id()];
    let batch = [first.chain(), beside.chain(), third.chain()];
    let created = bench.create(&batch).await.expect("no refusal");
    let flags: Vec<_> = created.iter().map(|chain| chain.deduplicated).collect();
    assert_eq!(flags, [false, false, true]);
    assert!(ids.contains(&created[2].id));
}

/// A start that was rolled back to a savepoint holds no key, and a chain whose end was rolled back holds it still.
pub async fn a_savepoint_gives_keys_back<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut transaction = bench.begin().await;
    transaction.savepoint(1).await;
    transaction.start_as(draft("mail").deduplicate("key")).await;
    transaction.rollback_to_savepoint(1).await;
    let kept = transaction.start_as(draft("mail").deduplicate("key")).await;
    transaction.savepoint(1).await;
    transaction.complete_outside(kept, "1").await;
    transaction.start_as(draft("mail").deduplicate("key")).await;
    transaction.rollback_to_savepoint(1).await;
    transaction.commit().await;
    assert_found(&bench, open("key"), kept).await;
    assert_eq!(bench.list_chains(&super::list_chains::query()).await.len(), 1);
}

/// An earlier chain of the same call counts as existing. (S18)
pub async fn an_earlier_chain_of_the_call_counts<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let existing = bench.start_as(draft("mail").deduplicate("old")).await;
    let batch: Vec<_> = ["old", "new", "new", "old", "else"]
        .map(|key| draft("mail").deduplicate(key).chain())
        .to_vec();
    let ids: Vec<_> = batch.iter().map(|chain| chain.job.id.as_chain()).collect();
    let created = bench.create(&batch).await.expect("no refusal");
    let got: Vec<_> = created.iter().map(|chain| (chain.id, chain.deduplicated)).collect();
    let expected = [
        (existing, true),
        (ids[1], false),
        (ids[1], true),
        (existing, true),
        (ids[4], false),
    ];
    assert_eq!(got, expected);
}

/// In a call of many chains every key starts one, the first that has it, whatever scopes the others have; so it is in a
/// transaction, of one call or of several. A key that the store had before starts none.
pub async fn keys_of_a_large_call_count_in_every_scope<F: StateFixture>(fixture: F) {
    const KEYS: usize = 700;
    let bench = Bench::new(fixture).await;
    let existing = bench.start_as(draft("mail").deduplicate("key-3")).await;
    let scoped = |number: usize| {
        let key = format!("key-{}", number % KEYS);
        match number % 3 {
            0 => Deduplication::while_open(key),
            1 => Deduplication::within(key, LONG),
            _ => Deduplication::forever(key),
        }
    };
    let batch: Vec<_> = (0..KEYS * 3)
        .map(|number| draft("mail").deduplicate(scoped(number)).chain())
        .collect();
    let ids: Vec<_> = batch.iter().map(|chain| chain.job.id.as_chain()).collect();
    let expected: Vec<_> = (0..batch.len())
        .map(|number| match number % KEYS {
            3 => (existing, true),
            key => (ids[key], number >= KEYS),
        })
        .collect();
    let answers = |created: Vec<CreatedChain>| -> Vec<_> {
        created
            .into_iter()
            .map(|chain| (chain.id, chain.deduplicated))
            .collect()
    };
    let mut transaction = bench.begin().await;
    assert_eq!(answers(transaction.create(&batch).await.expect("no refusal")), expected);
    transaction.rollback().await;
    let mut transaction = bench.begin().await;
    let (first, second) = batch.split_at(KEYS + KEYS / 2);
    let mut created = transaction.create(first).await.expect("no refusal");
    created.extend(transaction.create(second).await.expect("no refusal"));
    assert_eq!(answers(created), expected);
    transaction.rollback().await;
    assert_eq!(answers(bench.create(&batch).await.expect("no refusal")), expected);
}

/// A matching key wins over a supplied id, also one that exists. (S25)
pub async fn a_matching_key_wins_over_a_supplied_id<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    let other = bench.start("mail").await;
    for id in [chain, other] {
        let again = draft("mail").with_id(id.first_job()).deduplicate("key");
        let created = bench.create_one(again).await.expect("the key wins");
        assert_eq!((created.id, created.deduplicated), (chain, true));
    }
}

/// A start that rolls back holds no key.
pub async fn a_rolled_back_start_holds_no_key<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut transaction = bench.begin().await;
    transaction.start_as(draft("mail").deduplicate("key")).await;
    transaction.rollback().await;
    assert_new(&bench, open("key")).await;
}

/// A transaction that ends a chain may start the next one with its key, and both come or neither.
pub async fn a_key_can_be_passed_on_within_a_transaction<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = assert_new(&bench, open("key")).await;
    for commit in [false, true] {
        let mut transaction = bench.begin().await;
        transaction.complete_outside(chain, "1").await;
        let next = transaction.start_as(draft("mail").deduplicate("key")).await;
        match commit {
            true => transaction.commit().await,
            false => transaction.rollback().await,
        }
        assert_found(&bench, open("key"), if commit { next } else { chain }).await;
    }
}

/// A second starter waits for the transaction of the first: it gets that chain, or starts its own if the first rolls
/// back. (H3, I7)
pub async fn a_second_starter_waits_for_the_first<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for (key, end) in [("a", End::Commit), ("b", End::Rollback)] {
        for deduplication in [open(key), Deduplication::forever(format!("{key}-forever"))] {
            let mut first = bench.begin().await;
            let chain = first.start_as(draft("mail").deduplicate(deduplication.clone())).await;
            let mut second = pin!(start_keyed(&bench, deduplication));
            let created = bench.overlap_waiting(first, end, second.as_mut()).await;
            assert_eq!(created.deduplicated, end == End::Commit);
            assert_eq!(created.id == chain, end == End::Commit);
            assert!(bench.exists(created.id).await);
        }
    }
}

/// A starter whose key another transaction is about to free gets the right answer once that is decided. (I7)
pub async fn a_starter_waits_for_a_key_that_is_being_freed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for end in [End::Commit, End::Rollback] {
        let chain = assert_new(&bench, open("key")).await;
        let mut holder = bench.begin().await;
        holder.complete_outside(chain, "1").await;
        let mut starting = pin!(start_keyed(&bench, open("key")));
        // A store may also answer at once from what is committed: the chain is open until the other commits.
        let created = bench.overlap(holder, end, starting.as_mut()).await;
        match end {
            End::Commit if !created.deduplicated => bench.cancel(&[created.id]).await.map(drop).expect("open"),
            _ => assert_eq!((created.id, created.deduplicated), (chain, true)),
        }
    }
}

/// Concurrent starters of one key get one chain, of which one of them is the starter. (H3, I7)
pub async fn concurrent_starters_get_one_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for round in 0..5 {
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let bench = bench.clone();
                tokio::spawn(async move { start_keyed(&bench, open(&format!("key-{round}"))).await })
            })
            .collect();
        let mut created = Vec::new();
        for task in tasks {
            created.push(task.await.expect("no start fails"));
        }
        assert!(created.iter().all(|chain| chain.id == created[0].id));
        assert_eq!(created.iter().filter(|chain| !chain.deduplicated).count(), 1);
    }
    assert_eq!(bench.list_chains(&super::list_chains::query()).await.len(), 5);
}

/// A retried chain and a new starter of its key end with one open chain. (I7)
pub async fn a_retry_and_a_start_at_once_leave_one_open_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let stopped = [assert_new(&bench, open("key")).await];
    bench.cancel(&stopped).await.expect("the chain is open");
    let mut first = bench.begin().await;
    first.start_as(draft("mail").deduplicate("key")).await;
    let mut retrying = pin!(bench.retry(&stopped));
    let retried = bench.overlap_waiting(first, End::Commit, retrying.as_mut()).await;
    assert!(
        matches!(retried, Err(queuert::adapter::Refusal::KeyTaken { .. })),
        "{retried:?}"
    );
    let mut query = super::list_chains::query();
    query.statuses = Some(vec![JobStatus::Pending]);
    assert_eq!(bench.list_chains(&query).await.len(), 1);
}
