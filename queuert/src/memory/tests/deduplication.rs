use super::*;
use crate::deduplication::Deduplication;

fn keyed(number: u128, wanted: Deduplication) -> NewChain {
    let mut chain = new_chain(number);
    chain.deduplication = Some(wanted);
    chain
}

fn open(number: u128) -> NewChain {
    keyed(number, Deduplication::while_open("key"))
}

#[tokio::test]
async fn the_second_starter_of_a_key_waits_for_the_first() {
    for commits in [true, false] {
        let state = state();
        let mut transaction = state.begin().await.unwrap();
        let within = Some(&mut *transaction);
        state.create_chains(within, &[open(1)]).await.unwrap().unwrap();
        let chains = [open(2)];
        let mut second = pin!(state.create_chains(None, &chains));
        assert!(poll(second.as_mut()).is_pending());
        if commits {
            state.commit(transaction).await.unwrap();
        } else {
            drop(transaction);
        }
        let created = second.await.unwrap().unwrap().remove(0);
        assert_eq!(created.deduplicated, commits);
        assert_eq!(created.id, chain_id(if commits { 1 } else { 2 }));
    }
}

#[tokio::test]
async fn a_key_covers_the_chain_until_it_ends() {
    let state = state();
    start(&state, &[open(1)]).await;
    claim(&state, "task", 1, 1).await;
    let next = new_job(2, "other", &[]);
    settle(&state, &[continue_with(1, 1, next)]).await;
    let again = start(&state, &[open(3)]).await.remove(0);
    assert_eq!((again.id, again.deduplicated), (chain_id(1), true));
    claim(&state, "other", 1, 2).await;
    settle(&state, &[finish(2, 2)]).await;
    let fresh = start(&state, &[open(3)]).await.remove(0);
    assert_eq!((fresh.id, fresh.deduplicated), (chain_id(3), false));
    let any = start(&state, &[keyed(4, Deduplication::forever("key"))])
        .await
        .remove(0);
    assert_eq!((any.id, any.deduplicated), (chain_id(3), true));
}

#[tokio::test]
async fn the_newest_match_counts_without_exceptions_and_an_open_one_whatever_the_window() {
    let state = state();
    start(&state, &[open(1)]).await;
    state.clock().advance(Duration::from_secs(10));
    let successor = open(2).deduplication.unwrap().except_ids([chain_id(1)]);
    start(&state, &[keyed(2, successor)]).await;
    assert_eq!(start(&state, &[open(3)]).await[0].id, chain_id(2));
    let older = Deduplication::while_open("key").except_ids([chain_id(2)]);
    assert_eq!(start(&state, &[keyed(3, older.clone())]).await[0].id, chain_id(1));
    let mut window = Deduplication::within("key", Duration::from_secs(9)).except_ids([chain_id(2)]);
    let found = start(&state, &[keyed(3, window.clone())]).await;
    assert_eq!(
        found[0].id,
        chain_id(1),
        "it is open, although it is older than the window"
    );
    state.cancel_chains(None, &[chain_id(1)]).await.unwrap().unwrap();
    let created = start(&state, &[keyed(3, window.clone())]).await;
    assert!(!created[0].deduplicated, "it has ended, and is older than the window");
    window.except.push(chain_id(3));
    state.clock().advance(Duration::from_secs(10));
    state.cancel_chains(None, &[chain_id(3)]).await.unwrap().unwrap();
    assert!(!start(&state, &[keyed(4, window)]).await[0].deduplicated);
}

#[tokio::test]
async fn duplicates_within_one_call_are_found() {
    let state = state();
    let mut transaction = state.begin().await.unwrap();
    let batch = [open(1), open(2), new_chain(3)];
    let created = state
        .create_chains(Some(&mut transaction), &batch)
        .await
        .unwrap()
        .unwrap();
    let flags: Vec<_> = created.iter().map(|chain| chain.deduplicated).collect();
    assert_eq!(flags, [false, true, false]);
    assert_eq!(created[1].id, chain_id(1));
}

#[tokio::test]
async fn a_retry_is_refused_while_another_open_chain_has_the_key() {
    let state = state();
    start(&state, &[open(1)]).await;
    state.cancel_chains(None, &[chain_id(1)]).await.unwrap().unwrap();
    start(&state, &[open(2)]).await;
    let refused = state.retry_chains(None, &[chain_id(1)]).await.unwrap().unwrap_err();
    let taken = Refusal::KeyTaken {
        chain: chain_id(1),
        holder: chain_id(2),
    };
    assert_eq!(refused, taken);
    state.cancel_chains(None, &[chain_id(2)]).await.unwrap().unwrap();
    let both = [chain_id(2), chain_id(1)];
    let refused = state.retry_chains(None, &both).await.unwrap();
    assert!(matches!(refused, Err(Refusal::KeyTaken { .. })));
    state.retry_chains(None, &[chain_id(1)]).await.unwrap().unwrap();
    // The retried chain counts again, although it is not the newest.
    assert_eq!(start(&state, &[open(3)]).await[0].id, chain_id(1));
}

#[tokio::test]
async fn a_chain_that_starts_its_own_successor_does_not_pay_for_its_history() {
    let state = state();
    start(&state, &[open(1)]).await;
    for number in 1..200 {
        claim(&state, "task", 1, number).await;
        let wanted = Deduplication::while_open("key").except_ids([chain_id(number)]);
        assert!(!start(&state, &[keyed(number + 1, wanted)]).await[0].deduplicated);
        settle(&state, &[finish(number, number)]).await;
    }
    assert!(state.lock().store.keys.open_entries() < 5);
}
