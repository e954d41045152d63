//! A call that nobody polls any more, or that is dropped half way, holds up no other.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{MaybeDone, maybe_done};
use queuert::adapter::{NewChain, NewJob, StateAdapter};
use queuert::{ChainId, ChainRef, Client, Error, JobStatus, Payload};
use tokio::task::JoinSet;

use super::jobs::{Count, Greet, greet, greeting, run_all};
use super::probe::{chain_count, own_id, status};
use super::unfinished::{Stage, VERBS};
use crate::behaviour::PairFixture;

/// How many starts of other tasks have to come through.
const OTHERS: u32 = 10;

/// A call that was polled once and is kept, as `select!` does with the branch that lost.
async fn kept<T: IntoFuture>(call: T) -> Pin<Box<MaybeDone<T::IntoFuture>>> {
    let mut call = Box::pin(maybe_done(call.into_future()));
    let _ = futures_util::poll!(call.as_mut());
    call
}

/// A call that begins a transaction, kept where it waits for that. With a store that has one writer, it has to wait for the
/// transaction before it. Otherwise the store may open the transaction within the first poll, if the thread that polls is
/// slow, and what is kept would be an open transaction, which others do wait for.
async fn kept_at_its_begin<S: StateAdapter, T: IntoFuture>(
    client: &Client<S>,
    call: T,
) -> Pin<Box<MaybeDone<T::IntoFuture>>> {
    let before = client.begin().await.expect("a transaction opens");
    let call = kept(call).await;
    before.rollback().await.expect("it rolls back");
    call
}

/// What becomes of a kept call when it is polled again.
async fn polled<T: Future>(mut call: Pin<Box<MaybeDone<T>>>) -> T::Output {
    call.as_mut().await;
    call.as_mut().take_output().expect("a call ends once")
}

/// Polls a call this often, and drops it. Whether it was done.
async fn dropped_after(polls: usize, call: impl IntoFuture) -> bool {
    done_after(polls, pin!(call.into_future())).await
}

/// Polls a call this often. Whether it is done then.
async fn done_after(polls: usize, mut call: Pin<&mut impl Future>) -> bool {
    let mut left = polls;
    poll_fn(|context| {
        if call.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        left -= 1;
        if left == 0 {
            return Poll::Ready(false);
        }
        Poll::Pending
    })
    .await
}

/// Tasks that start, read and open transactions all come through.
async fn others_come_through<S: StateAdapter>(client: &Client<S>) {
    let mut others = JoinSet::new();
    for number in 0..OTHERS {
        let client = client.clone();
        others.spawn(async move {
            let started = client.start(Count { number }).await.expect("it starts");
            assert_eq!(status(&client, &started).await, JobStatus::Pending);
        });
    }
    let own = client.clone();
    others.spawn(async move {
        let mut tx = own.begin().await.expect("a transaction opens");
        own.start(greet("Eve")).within(&mut tx).await.expect("it starts");
        tx.commit().await.expect("it commits");
    });
    while let Some(other) = others.join_next().await {
        other.expect("no task panics");
    }
}

/// A start that is kept holds up no other, and goes on when it is polled again.
pub async fn a_kept_start_holds_up_no_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(Count { number: 0 }).await.expect("it starts");
    let mut starts = Vec::new();
    for number in 0..3 {
        starts.push(kept(client.start(Count { number })).await);
    }
    others_come_through(&client).await;
    for start in starts {
        polled(start).await.expect("it starts");
    }
    let others = usize::try_from(OTHERS).expect("a few");
    assert_eq!(chain_count(&client).await, 1 + 3 + others + 1);
}

/// A begin that is kept holds up no other call, and gives a transaction when it is polled again.
pub async fn a_kept_begin_holds_up_no_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let begin = kept_at_its_begin(&client, client.begin()).await;
    others_come_through(&client).await;
    let mut tx = polled(begin).await.expect("a transaction opens");
    let started = client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    tx.commit().await.expect("it commits");
    assert_eq!(status(&client, &started).await, JobStatus::Pending);
}

/// How often a wait looks that is told nothing.
const SOON: Duration = Duration::from_millis(20);

/// Reads and waits that are kept hold up no other call, and give what they found or find then.
pub async fn kept_reads_and_waits_hold_up_no_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let get = kept(client.get_chain_record(&started)).await;
    let list = kept(client.list_chains()).await;
    let wait = kept(client.wait(&started).poll_interval(SOON)).await;
    others_come_through(&client).await;
    assert!(polled(get).await.expect("it can be read").is_some());
    assert!(!polled(list).await.expect("they can be listed").items.is_empty());
    run_all(&client).await;
    assert_eq!(polled(wait).await.expect("it ended"), greeting("Ada"));
}

/// An end from outside that is kept holds up no other call, and ends the chain when it is polled again.
pub async fn a_kept_end_holds_up_no_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let end = kept_at_its_begin(&client, end_from_outside(&client, started.id())).await;
    others_come_through(&client).await;
    polled(end).await.expect("it finishes");
    assert_eq!(status(&client, &started).await, JobStatus::Completed);
}

/// Every verb, polled any number of times and kept, holds up no call for other chains.
pub async fn a_verb_kept_at_any_poll_holds_up_no_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for (verb, number) in VERBS.into_iter().zip(1..) {
        for polls in 1.. {
            let round = number * 1_000 + u32::try_from(polls).expect("a few");
            let stage = Stage::set(&client, verb, round).await;
            let mut act = Box::pin(stage.act_alone(&client));
            let done = done_after(polls, act.as_mut()).await;
            others_read_and_write(&client).await;
            if done {
                break;
            }
        }
    }
}

/// The first start of a type, polled any number of times and kept, holds up no other start of that type.
pub async fn a_kept_first_start_of_a_type_holds_up_no_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for polls in 1.. {
        let new = |number: u128| {
            let id = own_id(u128::try_from(polls).expect("a few") * 2 + number);
            let job = NewJob::new(id, format!("new {polls}"), Payload::from_text("1"));
            [NewChain::new(job)]
        };
        let (own, other) = (new(0), new(1));
        let mut start = Box::pin(client.state().create_chains(None, &own));
        let done = done_after(polls, start.as_mut()).await;
        let started = client.state().create_chains(None, &other).await;
        started.expect("the store is well").expect("no refusal");
        if done {
            return;
        }
    }
}

/// A call may be dropped at any poll: whatever it held is free for others.
pub async fn a_call_dropped_at_any_poll_leaves_nothing_behind<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for polls in 1.. {
        let started = client.start(greet("Ada")).await.expect("it starts");
        let mut done = dropped_after(polls, client.start(greet("Eve"))).await;
        others_read_and_write(&client).await;
        done &= dropped_after(polls, client.get_chain_record(&started)).await;
        others_read_and_write(&client).await;
        let begun = async { client.begin().await?.commit().await };
        done &= dropped_after(polls, begun).await;
        others_read_and_write(&client).await;
        done &= dropped_after(polls, end_from_outside(&client, started.id())).await;
        others_read_and_write(&client).await;
        let impatient = client.wait(&started).timeout(Duration::from_millis(50));
        done &= dropped_after(polls, impatient).await;
        others_read_and_write(&client).await;
        if done {
            return;
        }
    }
}

async fn others_read_and_write<S: StateAdapter>(client: &Client<S>) {
    let started = client.start(Count { number: 1 }).await.expect("it starts");
    assert_eq!(status(client, &started).await, JobStatus::Pending);
    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .cancel(&started)
        .within(&mut tx)
        .await
        .expect("it can be cancelled");
    tx.commit().await.expect("it commits");
}

async fn end_from_outside<S: StateAdapter>(client: &Client<S>, chain: ChainId) -> Result<(), Error> {
    let mut tx = client.begin().await?;
    let open = client
        .open::<Greet>(ChainRef::<Greet>::new(chain))
        .within(&mut tx)
        .await?;
    open.finish("done".to_owned()).await?;
    tx.commit().await
}
