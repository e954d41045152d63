//! Chains that end.

use super::ear::{Participant, ended, jobs, lost};
use crate::fixture::NotifyFixture;
use crate::identity;

/// Who listens for a chain hears of its end. (N10)
pub async fn a_listener_of_a_chain_hears_of_its_end<F: NotifyFixture>(fixture: F) {
    let (listener, announcer) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let chain = identity::chain_id();
    let mut ear = listener.chain(chain).await;
    announcer.announce(&[ended(chain)]).await;
    ear.hears(ended(chain)).await;
}

/// The end of another chain is not heard of. (N11)
pub async fn other_chains_are_not_heard<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let chain = identity::chain_id();
    let mut ear = participant.chain(chain).await;
    participant
        .announce(&[ended(identity::chain_id()), jobs("mail", 1), lost(chain.first_job())])
        .await;
    ear.hears_nothing().await;
    participant.announce(&[ended(chain)]).await;
    ear.hears(ended(chain)).await;
}

/// Everyone who listens for a chain hears of its end. (N12)
pub async fn every_listener_of_a_chain_hears_of_its_end<F: NotifyFixture>(fixture: F) {
    let (one, two) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let chain = identity::chain_id();
    let (mut first, mut second, mut third) = (one.chain(chain).await, one.chain(chain).await, two.chain(chain).await);
    one.announce(&[ended(chain)]).await;
    first.hears(ended(chain)).await;
    second.hears(ended(chain)).await;
    third.hears(ended(chain)).await;
}

/// One who stops listening leaves the others, and may listen again. (N13, N20, N21, N23)
pub async fn who_stops_listening_leaves_the_others<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let chain = identity::chain_id();
    let gone = participant.chain(chain).await;
    let mut here = participant.chain(chain).await;
    drop(gone);
    participant.announce(&[ended(chain)]).await;
    here.hears(ended(chain)).await;
    drop(here);
    participant.announce(&[ended(chain)]).await;
    let mut again = participant.chain(chain).await;
    again.hears_nothing().await;
    participant.announce(&[ended(chain)]).await;
    again.hears(ended(chain)).await;
}

/// Many chains are heard of, each by its own listener. (N18)
pub async fn many_chains_are_heard_of<F: NotifyFixture>(fixture: F) {
    let (listener, announcer) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let mut ears = Vec::new();
    for _ in 0..50 {
        let chain = identity::chain_id();
        ears.push((chain, listener.chain(chain).await));
    }
    for (chain, _) in &ears {
        announcer.announce(&[ended(*chain)]).await;
    }
    for (chain, ear) in &mut ears {
        ear.hears(ended(*chain)).await;
    }
}
