//! Due jobs.

use queuert::TypeName;
use queuert::adapter::{Demand, Notice, Topic, Wake};

use super::ear::{Participant, jobs};
use crate::fixture::NotifyFixture;

/// Who listens for a type hears of its jobs, with the type's name. (N1)
pub async fn a_listener_of_a_type_hears_of_its_jobs<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut ear = participant.jobs(&["mail"]).await;
    participant.announce_jobs("mail", 1).await;
    assert_eq!(ear.hears_jobs("mail").await, 1);
}

/// Every announcement is heard, one after the other. (N2)
pub async fn every_announcement_is_heard<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut ear = participant.jobs(&["mail"]).await;
    for _ in 0..3 {
        participant.announce_jobs("mail", 1).await;
        ear.hears_jobs("mail").await;
    }
}

/// Jobs of another type are not heard of, nor are chains and leases. (N3)
pub async fn other_types_are_not_heard<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut ear = participant.jobs(&["mail"]).await;
    let id = crate::identity::job_id();
    let notices = [
        jobs("mail2", 1),
        jobs("Mail", 1),
        Notice::ChainEnded(id.as_chain()),
        Notice::LeaseLost(id),
    ];
    participant.announce(&notices).await;
    ear.hears_nothing().await;
    participant.announce_jobs("mail", 1).await;
    ear.hears_jobs("mail").await;
}

/// Who listens for several types hears of each of them. (N4)
pub async fn a_listener_of_several_types_hears_of_each<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let mut ear = participant.jobs(&["a", "b", "c"]).await;
    for type_name in ["c", "a", "b"] {
        participant.announce_jobs(type_name, 1).await;
        ear.hears_jobs(type_name).await;
    }
}

/// Any type name can be announced, also one that would be a bad channel name.
pub async fn any_type_name_can_be_announced<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let longest = "ü".repeat(TypeName::MAX_LENGTH / 2);
    for name in [longest.as_str(), "a.b>*", "it's \"quoted\"; --", "with space", "UPPER"] {
        let topic = Topic::Jobs {
            types: vec![name.to_owned().into()],
            demand: Demand::new(1),
        };
        let mut ear = participant.listen(topic).await;
        let notice = Notice::JobsAvailable {
            type_name: name.to_owned().into(),
            count: 1,
        };
        participant.announce(std::slice::from_ref(&notice)).await;
        assert_eq!(ear.next().await, Wake::Notice(notice));
    }
}

/// Announcing without listeners is no error, and neither is announcing nothing. (N6)
pub async fn announcing_without_listeners_is_no_error<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let id = crate::identity::job_id();
    participant.announce(&[]).await;
    let notices = [
        jobs("mail", 3),
        Notice::ChainEnded(id.as_chain()),
        Notice::LeaseLost(id),
    ];
    participant.announce(&notices).await;
    let mut ear = participant.jobs(&["mail"]).await;
    participant.announce_jobs("mail", 1).await;
    ear.hears_jobs("mail").await;
}

/// What one participant announces, another hears.
pub async fn participants_hear_each_other<F: NotifyFixture>(fixture: F) {
    let (one, two) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    let (mut ear_one, mut ear_two) = (one.jobs(&["a"]).await, two.jobs(&["b"]).await);
    one.announce_jobs("b", 1).await;
    ear_two.hears_jobs("b").await;
    two.announce_jobs("a", 1).await;
    ear_one.hears_jobs("a").await;
}

/// When subscribing has returned, the very next announcement is heard.
pub async fn a_subscription_hears_from_the_start<F: NotifyFixture>(fixture: F) {
    let (listener, announcer) = (Participant::join(&fixture).await, Participant::join(&fixture).await);
    for _ in 0..20 {
        let mut ear = listener.jobs(&["mail"]).await;
        announcer.announce_jobs("mail", 1).await;
        ear.hears_jobs("mail").await;
    }
}

/// One call announces many things, and everyone hears their part.
pub async fn one_call_announces_many_things<F: NotifyFixture>(fixture: F) {
    let participant = Participant::join(&fixture).await;
    let id = crate::identity::job_id();
    let (mut a, mut b) = (participant.jobs(&["a"]).await, participant.jobs(&["b"]).await);
    let mut chain = participant.chain(id.as_chain()).await;
    let mut leases = participant.listen(Topic::Leases).await;
    let notices = [
        jobs("a", 1),
        Notice::LeaseLost(id),
        jobs("b", 2),
        Notice::ChainEnded(id.as_chain()),
    ];
    participant.announce(&notices).await;
    a.hears_jobs("a").await;
    b.hears_jobs("b").await;
    chain.hears(Notice::ChainEnded(id.as_chain())).await;
    leases.hears(Notice::LeaseLost(id)).await;
}
