//! Several handles on one file in one process.

use std::time::Duration;

use futures_util::FutureExt;
use queuert::ChainId;
use queuert::adapter::{Notice, NotifyAdapter, StateAdapter, Topic, Wake};
use queuert_sqlite::{SqliteNotify, SqliteState};
use tokio::time::timeout;

use super::{LONG, chain, exists, file, id, jobs, start};

#[tokio::test]
async fn two_handles_on_one_file_see_each_other() {
    let (_directory, path, one) = file().await;
    let two = SqliteState::open(&path).await.unwrap();
    let writers = (0..2_u128).flat_map(|place| (0..25_u128).map(move |number| (place, number)));
    let writers: Vec<_> = writers
        .map(|(place, number)| {
            let state = if place == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move { start(&state, 1 + place * 25 + number).await })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    for number in 1..=50 {
        assert!(exists(&one, number).await && exists(&two, number).await);
    }
}

/// A change through one handle wakes the subscribers of another one, without an announcement.
#[tokio::test]
async fn a_change_of_another_handle_wakes() {
    let (_directory, path, one) = file().await;
    let two = SqliteState::open(&path).await.unwrap();
    let notify = SqliteNotify::new(&two);
    let mut for_jobs = notify.subscribe(jobs(5)).await.unwrap();
    start(&one, 1).await;
    let wake = timeout(LONG, for_jobs.recv()).await.unwrap();
    assert!(
        matches!(wake, Some(Wake::Notice(Notice::JobsAvailable { .. }))),
        "{wake:?}"
    );

    let chain: ChainId = id(1).as_chain();
    let mut for_end = notify.subscribe(Topic::Chain(chain)).await.unwrap();
    let silent = timeout(Duration::from_millis(100), for_end.recv()).await;
    assert!(silent.is_err(), "it has not ended");
    one.cancel_chains(None, &[chain]).await.unwrap().unwrap();
    let wake = timeout(LONG, for_end.recv()).await.unwrap();
    assert_eq!(wake, Some(Wake::Notice(Notice::ChainEnded(chain))));
}

/// A closed store closes the file even if there are subscribers.
#[tokio::test]
async fn a_subscriber_does_not_keep_a_closed_file_open() {
    let (_directory, path, state) = file().await;
    start(&state, 1).await;
    let notify = SqliteNotify::new(&state);
    let _subscription = notify.subscribe(jobs(1)).await.unwrap();
    // The future is dropped after its first poll.
    assert!(state.close().now_or_never().is_none());
    // The last connection folds the log into the file.
    let log = path.with_extension("db-wal");
    let closed = async {
        while log.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, closed).await.unwrap();
    let error = state.get_jobs(None, &[id(1)]).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    let error = notify.subscribe(jobs(1)).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.to_string().contains("closed"), "{source}");
    assert!(!log.exists());
}

/// The watermark does not pass a transaction that another process has open, and does not wait for it.
#[tokio::test]
async fn the_watermark_does_not_pass_an_open_transaction_of_another_handle() {
    let (_directory, path, state) = file().await;
    let other = SqliteState::open(&path).await.unwrap();
    start(&state, 1).await;
    let mut open = other.begin().await.unwrap();
    other
        .create_chains(Some(&mut open), &[chain(2)])
        .await
        .unwrap()
        .unwrap();
    let time = timeout(LONG, state.watermark()).await.unwrap().unwrap();
    other.commit(open).await.unwrap();
    let jobs = state.get_jobs(None, &[id(1), id(2)]).await.unwrap();
    assert!(
        jobs[0].created_at < time && time <= jobs[1].created_at,
        "{time}: {jobs:?}"
    );
    assert!(state.watermark().await.unwrap() > jobs[1].created_at);
}
