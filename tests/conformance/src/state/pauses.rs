//! The pauses of job types, as stored.

use queuert::Pause;
use queuert::adapter::StateAdapter;

use crate::bench::{Bench, LONG, answer};
use crate::fixture::StateFixture;

async fn pauses<F: StateFixture>(bench: &Bench<F>) -> Vec<Pause> {
    answer(bench.state().list_pauses(None).await).pauses
}

fn described(type_name: &str, since: queuert::Timestamp) -> Pause {
    let mut pause = Pause::new(type_name.to_owned(), since);
    pause.reason = Some("the bank's \"API\" is down \u{1f4a5}\nagain".into());
    pause.author = Some("Ada".into());
    pause.until = Some(since.saturating_add(LONG));
    pause
}

/// A pause is kept as it was written, also one of a type that has no job. They come by the name of the type, with the time.
pub async fn a_pause_is_kept_as_it_was_written<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert_eq!(pauses(&bench).await, []);
    let since = bench.now().await;
    let expected = [Pause::new("charge", since), described("mail", since)];
    for pause in expected.iter().rev() {
        answer(bench.state().put_pause(None, pause).await);
    }
    let read = answer(bench.state().list_pauses(None).await);
    assert_eq!(read.pauses, expected);
    assert!(since <= read.now && read.now <= bench.now().await);
}

/// A type has one pause, the last that was written.
pub async fn a_pause_takes_the_place_of_the_one_before<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let since = bench.now().await;
    let (first, last) = (described("mail", since), Pause::new("mail", since));
    for pause in [&first, &last] {
        answer(bench.state().put_pause(None, pause).await);
        assert_eq!(pauses(&bench).await, std::slice::from_ref(pause));
    }
}

/// A pause that was deleted is gone, and the answer says whether there was one.
pub async fn a_deleted_pause_is_gone<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let since = bench.now().await;
    for name in ["charge", "mail"] {
        answer(bench.state().put_pause(None, &Pause::new(name, since)).await);
    }
    let name = "mail".into();
    assert!(answer(bench.state().delete_pause(None, &name).await));
    assert!(!answer(bench.state().delete_pause(None, &name).await));
    assert_eq!(pauses(&bench).await, [Pause::new("charge", since)]);
}

/// In a transaction, a pause is written and deleted if and only if it commits; the transaction sees its own.
pub async fn a_pause_is_part_of_its_transaction<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (state, since) = (bench.state(), bench.now().await);
    let (kept, new) = (Pause::new("charge", since), Pause::new("mail", since));
    answer(state.put_pause(None, &kept).await);
    for commits in [false, true] {
        let mut transaction = answer(state.begin().await);
        answer(state.put_pause(Some(&mut transaction), &new).await);
        assert!(answer(
            state.delete_pause(Some(&mut transaction), &kept.type_name).await
        ));
        let own = answer(state.list_pauses(Some(&mut transaction)).await);
        assert_eq!(own.pauses, std::slice::from_ref(&new));
        if commits {
            answer(state.commit(transaction).await);
            assert_eq!(pauses(&bench).await, std::slice::from_ref(&new));
        } else {
            answer(state.rollback(transaction).await);
            assert_eq!(pauses(&bench).await, std::slice::from_ref(&kept));
        }
    }
}

/// Pauses are the library's business: a claim that names a paused type takes its jobs.
pub async fn a_claim_does_not_look_at_pauses<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let since = bench.now().await;
    answer(bench.state().put_pause(None, &Pause::new("mail", since)).await);
    let chain = bench.start("mail").await;
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}
