//! Job types that were paused or resumed.

use queuert::adapter::{Demand, Notice, Topic, Wake};

use super::ear::Participant;
use crate::fixture::NotifyFixture;

/// Every worker hears that pauses have changed, whatever it wants; an adapter may tell it to look at the store instead.
pub async fn every_worker_hears_of_changed_pauses<F: NotifyFixture>(fixture: F) {
    let (one, two) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let busy = Demand::new(0);
    let mut ears = [
        one.jobs_with(&["mail"], &busy).await,
        one.jobs_with(&["page", "mail"], &busy).await,
        two.jobs_with(&["page"], &busy).await,
    ];
    one.announce(&[Notice::PausesChanged]).await;
    for ear in &mut ears {
        let wake = ear.next().await;
        assert!(
            matches!(wake, Wake::Notice(Notice::PausesChanged) | Wake::Resync),
            "{wake:?}"
        );
    }
}

/// A listener for leases in the process of the announcer is not told.
pub async fn listeners_for_leases_beside_it_hear_nothing<F: NotifyFixture>(fixture: F) {
    let one = Participant::join(&fixture).await;
    let mut ear = one.listen(Topic::Leases).await;
    one.announce(&[Notice::PausesChanged]).await;
    ear.hears_nothing().await;
}
