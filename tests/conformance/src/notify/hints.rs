//! Hints: `count` jobs wake about `count` workers, and never fewer than they should.

use queuert::adapter::Demand;

use super::ear::{Ear, Participant};
use crate::bench::has;
use crate::fixture::NotifyFixture;

async fn woken(ears: &mut [Ear]) -> usize {
    let mut woken = 0;
    for ear in ears {
        woken += usize::from(ear.maybe().await.is_some());
    }
    woken
}

/// A job wakes somebody who could take it. (N7)
pub async fn a_job_wakes_somebody_who_could_take_it<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut busy = participant.jobs_with(&["mail"], &Demand::new(0)).await;
    let mut idle = participant.jobs_with(&["mail"], &Demand::new(1)).await;
    participant.announce_jobs("mail", 1).await;
    idle.hears_jobs("mail").await;
    if has(fixture.capabilities().hints, "the adapter does not read demand") {
        busy.hears_nothing().await;
    }
}

/// As many jobs as there is room for wake everybody who has room. (N9)
pub async fn enough_jobs_wake_everybody<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let demands = [Demand::new(2), Demand::new(3), Demand::new(1)];
    let mut ears = Vec::new();
    for demand in &demands {
        ears.push(participant.jobs_with(&["mail"], demand).await);
    }
    participant.announce_jobs("mail", 6).await;
    for ear in &mut ears {
        ear.hears_jobs("mail").await;
    }
}

/// Few jobs wake few workers, not all of them. (N8)
pub async fn few_jobs_wake_few<F: NotifyFixture>(fixture: F) {
    if !has(fixture.capabilities().hints, "the adapter does not read demand") {
        return;
    }
    let participant = Participant::join(&fixture).await;
    let demands: Vec<_> = (0..6).map(|_| Demand::new(1)).collect();
    let mut ears = Vec::new();
    for demand in &demands {
        ears.push(participant.jobs_with(&["mail"], demand).await);
    }
    participant.announce_jobs("mail", 2).await;
    let woken = woken(&mut ears).await;
    assert!((2..6).contains(&woken), "{woken} of 6 were woken for two jobs");
}

/// Announcements one after another go to different workers while those have room. (N8, N9)
pub async fn announcements_one_by_one_spread<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let demands: Vec<_> = (0..3).map(|_| Demand::new(1)).collect();
    let mut ears = Vec::new();
    for demand in &demands {
        ears.push(participant.jobs_with(&["mail"], demand).await);
    }
    for _ in 0..3 {
        participant.announce_jobs("mail", 1).await;
    }
    for ear in &mut ears {
        ear.hears_jobs("mail").await;
    }
}

/// Room that a subscriber gains later counts.
pub async fn room_that_is_gained_later_counts<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let demand = Demand::new(0);
    let mut ear = participant.jobs_with(&["mail"], &demand).await;
    for _ in 0..3 {
        demand.set(1);
        participant.announce_jobs("mail", 1).await;
        ear.hears_jobs("mail").await;
    }
}

/// A subscriber that has gone uses up no hint: the next one is woken. (N5)
pub async fn who_has_gone_uses_up_no_hint<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let (first, second) = (Demand::new(1), Demand::new(1));
    let gone = participant.jobs_with(&["mail"], &first).await;
    let mut here = participant.jobs_with(&["mail"], &second).await;
    drop(gone);
    participant.announce_jobs("mail", 1).await;
    here.hears_jobs("mail").await;
}
