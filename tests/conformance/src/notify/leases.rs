//! Leases that were taken.

use queuert::adapter::Topic;

use super::ear::{Participant, ended, jobs, lost};
use crate::fixture::NotifyFixture;
use crate::identity;

/// Who listens for lost leases hears of every job's. (N14, N15)
pub async fn a_listener_of_leases_hears_of_every_job<F: NotifyFixture>(fixture: F) {
    let (listener, announcer) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let mut ear = listener.listen(Topic::Leases).await;
    for _ in 0..3 {
        let job = identity::job_id();
        announcer.announce(&[lost(job)]).await;
        ear.hears(lost(job)).await;
    }
}

/// Everyone who listens for lost leases hears of them, since nobody knows who runs the job. (N16)
pub async fn every_listener_of_leases_hears<F: NotifyFixture>(fixture: F) {
    let (one, two) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let (mut first, mut second) = (one.listen(Topic::Leases).await, two.listen(Topic::Leases).await);
    let job = identity::job_id();
    one.announce(&[lost(job)]).await;
    first.hears(lost(job)).await;
    second.hears(lost(job)).await;
}

/// Jobs and chains are not heard of by who listens for leases.
pub async fn leases_are_a_topic_of_their_own<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut ear = participant.listen(Topic::Leases).await;
    let job = identity::job_id();
    participant.announce(&[jobs("mail", 1), ended(job.as_chain())]).await;
    ear.hears_nothing().await;
    participant.announce(&[lost(job)]).await;
    ear.hears(lost(job)).await;
}

/// One who stops listening leaves the others. (N17, N21)
pub async fn who_stops_listening_for_leases_leaves_the_others<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let gone = participant.listen(Topic::Leases).await;
    let mut here = participant.listen(Topic::Leases).await;
    drop(gone);
    let job = identity::job_id();
    participant.announce(&[lost(job)]).await;
    here.hears(lost(job)).await;
}
