//! Slow, dropped and cut-off subscribers.

use std::sync::Arc;

use queuert::adapter::{Topic, Wake};

use super::ear::{Participant, ended, lost};
use crate::bench::has;
use crate::fixture::NotifyFixture;
use crate::identity;

/// A subscriber that does not read disturbs neither the announcer nor its peers, and is told to look at the store. (N22)
pub async fn a_slow_subscriber_disturbs_nobody<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut slow = participant.listen(Topic::Leases).await;
    let mut quick = participant.listen(Topic::Leases).await;
    for _ in 0..500 {
        let job = identity::job_id();
        participant.announce(&[lost(job)]).await;
        quick.hears(lost(job)).await;
    }
    let mut told = false;
    for _ in 0..500 {
        match slow.maybe().await {
            Some(Wake::Resync) => told = true,
            Some(Wake::Notice(_) | Wake::Failed(_)) => {}
            None => break,
        }
    }
    assert!(told, "who missed notices is told to look at the store");
}

/// Subscriptions that come and go leave nothing behind that would disturb the others. (N19, N20, N23)
pub async fn subscriptions_come_and_go<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut steady = participant.listen(Topic::Leases).await;
    for _ in 0..50 {
        let job = identity::job_id();
        let chain = participant.chain(job.as_chain()).await;
        let jobs = participant.jobs(&["mail"]).await;
        participant.announce(&[ended(job.as_chain()), lost(job)]).await;
        drop((chain, jobs));
        steady.hears(lost(job)).await;
    }
}

/// Subscribing and announcing from many tasks at once loses nothing.
pub async fn many_tasks_at_once_lose_nothing<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let adapter = Arc::clone(&participant.adapter);
            tokio::spawn(async move {
                let chain = identity::chain_id();
                let mut subscription = adapter.subscribe(Topic::Chain(chain)).await.expect("subscribing works");
                adapter.announce(&[ended(chain)]).await.expect("announcing works");
                assert_eq!(subscription.recv().await, Some(Wake::Notice(ended(chain))));
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("every task hears its own chain");
    }
}

/// After a cut connection the adapter listens again first, and then tells everyone to look at the store. (H22, I11)
pub async fn a_cut_connection_is_mended_and_told<F: NotifyFixture>(fixture: F) {
    if !has(
        fixture.capabilities().interrupt,
        "the fixture cannot cut the connection",
    ) {
        return;
    }
    let (listener, announcer) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let chain = identity::chain_id();
    let mut ears = vec![
        listener.jobs(&["mail"]).await,
        listener.chain(chain).await,
        listener.listen(Topic::Leases).await,
    ];
    fixture.interrupt(&listener.adapter).await;
    for ear in &mut ears {
        // The adapter may say that it hears nothing for a while; then it listens again.
        let mut wake = ear.next().await;
        while matches!(wake, Wake::Failed(_)) {
            wake = ear.next().await;
        }
        assert_eq!(wake, Wake::Resync);
    }
    announcer.announce(&[ended(chain)]).await;
    ears[1].hears(ended(chain)).await;
}
