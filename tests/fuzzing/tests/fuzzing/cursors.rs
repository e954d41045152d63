//! Cursors come back from browsers.

use proptest::prelude::*;
use queuert::adapter::{JobQuery, NewChain, NewJob, Order, Position, StateAdapter};
use queuert::memory::MemoryState;
use queuert::{Client, Cursor, Error, JobId, Payload};
use queuert_fuzzing::{Stores, fuzz, lines, text};
use uuid::Uuid;

const CORPUS: &str = include_str!("../../corpus/cursors.txt");
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/cursors.txt");

fn read(text: &str) {
    match text.parse::<Cursor>() {
        Ok(cursor) => assert_eq!(cursor.to_string(), text.to_ascii_lowercase()),
        Err(Error::InvalidCursor(problem)) => assert!(problem.contains("start again")),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn any_text_is_a_cursor_or_refused() {
    lines(CORPUS).iter().for_each(|line| read(line));
    fuzz(REGRESSIONS, 2_000, &text(CORPUS), |text| read(&text));
    fuzz(REGRESSIONS, 500, &"[0-9a-fA-F]{60,68}", |text| read(&text));
}

/// One that looks right and was made up belongs to no query.
#[test]
fn a_forged_cursor_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let client = Client::new(MemoryState::new());
    fuzz(REGRESSIONS, 300, &"[0-9a-f]{64}", |text| {
        let cursor: Cursor = text.parse().expect("it looks right");
        let page = runtime.block_on(async { client.list_jobs().after(cursor).await });
        assert!(matches!(page, Err(Error::InvalidCursor(_))), "{page:?}");
        let page = runtime.block_on(async { client.list_chains().after(cursor).await });
        assert!(matches!(page, Err(Error::InvalidCursor(_))), "{page:?}");
    });
}

const JOBS: u128 = 12;

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number << 64))
}

async fn fill(state: &impl StateAdapter) {
    let chains: Vec<_> = (1..=JOBS)
        .map(|number| NewChain::new(NewJob::new(id(number), "task", Payload::from_text("1"))))
        .collect();
    for half in chains.chunks(6) {
        state
            .create_chains(None, half)
            .await
            .expect("well")
            .expect("not refused");
    }
}

/// Whatever position a cursor holds, the page is what comes after it.
async fn page(state: &impl StateAdapter, after: Position, order: Order) {
    let mut query = JobQuery::default();
    (query.order, query.limit) = (order, 100);
    let all = state.list_jobs(None, &query).await.expect("well");
    assert_eq!(all.len(), JOBS as usize);
    query.after = Some(after);
    let found = state.list_jobs(None, &query).await.expect("well");
    let place = |value: i64, id: JobId| (value, id);
    let is_after = |job: &queuert::JobRecord| {
        let job = place(job.created_at.as_micros(), job.id);
        match order {
            Order::OldestFirst => job > place(after.value, after.id),
            Order::NewestFirst => job < place(after.value, after.id),
        }
    };
    let expected: Vec<_> = all.iter().filter(|job| is_after(job)).map(|job| job.id).collect();
    let found: Vec<_> = found.iter().map(|job| job.id).collect();
    assert_eq!(found, expected, "{after:?} {order:?}");
}

#[test]
fn any_position_has_a_page() {
    let stores = Stores::open();
    stores.runtime.block_on(async {
        fill(&stores.memory).await;
        fill(&stores.sqlite).await;
        fill(&stores.postgres).await;
    });
    let now = stores.runtime.block_on(async {
        let first = stores.postgres.get_jobs(None, &[id(1)]).await.expect("well");
        first[0].created_at.as_micros()
    });
    let value = prop_oneof![
        any::<i64>(),
        Just(i64::MIN),
        Just(i64::MAX),
        (now - 1_000_000..now + 1_000_000)
    ];
    let ids = prop_oneof![
        any::<u128>().prop_map(|number| JobId::from_uuid(Uuid::from_u128(number))),
        (0..14u128).prop_map(id)
    ];
    let order = prop_oneof![Just(Order::OldestFirst), Just(Order::NewestFirst)];
    fuzz(REGRESSIONS, 150, &(value, ids, order), |(value, id, order)| {
        let after = Position { value, id };
        stores.runtime.block_on(async {
            page(&stores.memory, after, order).await;
            page(&stores.sqlite, after, order).await;
            page(&stores.postgres, after, order).await;
        });
    });
}
