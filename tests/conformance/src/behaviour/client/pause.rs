//! Pausing and resuming job types.

use std::time::Duration;

use queuert::{Error, JobStatus, JobType, Pause, Timestamp};

use super::assert_error;
use super::jobs::{Count, First, Greet, greet, run_all};
use super::probe::{latest, status};
use crate::behaviour::PairFixture;

const LONG: Duration = Duration::from_secs(3_600);

/// A pause says who made it, why, since when and until when; the types are listed by name.
pub async fn a_pause_says_who_why_and_until_when<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    assert_eq!(client.paused().await.expect("pauses can be read"), []);
    let witness = client.start(greet("Ada")).await.expect("it starts");
    let first = client
        .pause::<Greet>()
        .reason("the bank is down")
        .by("ada")
        .lasting(LONG)
        .await
        .expect("it pauses");
    let second = client.pause_type(Count::NAME).await;
    assert_error!(second, Error::UnknownType(name) if name.as_str() == Count::NAME);
    let second = client.pause::<Count>().await.expect("a type of the code needs no job");
    assert!(first.since >= latest(&client, &witness).await.created_at);
    assert_eq!(first.type_name.as_str(), Greet::NAME);
    assert_eq!(
        (first.reason.as_deref(), first.author.as_deref(), first.until),
        (
            Some("the bank is down"),
            Some("ada"),
            Some(first.since.saturating_add(LONG))
        )
    );
    assert_eq!((&second.reason, &second.author, second.until), (&None, &None, None));
    let listed = client.paused().await.expect("pauses can be read");
    assert_eq!(listed, [second, first]);
}

/// A pause that is in force goes on with another reason; its beginning stays.
pub async fn a_pause_goes_on_with_another_reason<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = client.pause::<Greet>().reason("one").lasting(LONG).await;
    let first = first.expect("it pauses");
    fixture.elapse(client.state(), Duration::from_millis(5)).await;
    let second = client.pause::<Greet>().reason("two").by("ada").await;
    let second = second.expect("it pauses");
    let mut expected = Pause::new(Greet::NAME, first.since);
    expected.reason = Some("two".into());
    expected.author = Some("ada".into());
    assert_eq!(second, expected);
    assert_eq!(client.paused().await.expect("pauses can be read"), [expected]);
}

/// Resuming a type says which pause ended. A type that is not paused is left alone.
pub async fn resuming_says_what_ended<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let pause = client.pause::<Greet>().by("ada").await.expect("it pauses");
    client.pause::<Count>().await.expect("it pauses");
    assert_eq!(client.resume::<Greet>().await.expect("it resumes"), Some(pause));
    assert_eq!(client.resume::<Greet>().await.expect("it answers"), None);
    let by_name = client.resume_type(Count::NAME).await.expect("it resumes");
    assert!(by_name.is_some());
    assert_eq!(client.resume_type("nothing").await.expect("it answers"), None);
    assert_eq!(client.paused().await.expect("pauses can be read"), []);
}

/// A name that the store has never seen is an error, and nothing is paused. A name that it knows is paused.
pub async fn an_unknown_name_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("Ada")).await.expect("it starts");
    let typo = client.pause_type("gret").reason("typo").await;
    assert_error!(typo, Error::UnknownType(name) if name.as_str() == "gret");
    assert_eq!(client.paused().await.expect("pauses can be read"), []);
    client.pause_type(Greet::NAME).await.expect("it pauses");
    assert_eq!(client.paused().await.expect("pauses can be read").len(), 1);
}

/// A pause that would end before it begins is refused, and so are texts that not every store could keep.
pub async fn bad_pauses_are_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let past = client.pause::<Greet>().until(Timestamp::from_micros(1)).await;
    assert_error!(past, Error::Invalid { what, .. } if what.contains("end"));
    let nothing = client.pause::<Greet>().lasting(Duration::ZERO).await;
    assert_error!(nothing, Error::Invalid { what, .. } if what.contains("end"));
    let long = client.pause::<Greet>().reason("x".repeat(5_000)).await;
    assert_error!(long, Error::Invalid { what, .. } if what.contains("reason"));
    let nul = client.pause::<Greet>().by("a\0da").await;
    assert_error!(nul, Error::Invalid { what, .. } if what.contains("author"));
    assert_eq!(client.paused().await.expect("pauses can be read"), []);
}

/// A pause is part of the caller's transaction, and its notice too.
pub async fn a_pause_commits_with_its_transaction<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    client.pause::<Greet>().within(&mut tx).await.expect("it pauses");
    assert_eq!(client.paused().within(&mut tx).await.expect("it reads").len(), 1);
    tx.rollback().await.expect("it rolls back");
    assert_eq!(client.paused().await.expect("pauses can be read"), []);
    let mut tx = client.begin().await.expect("a transaction opens");
    client.pause::<Greet>().within(&mut tx).await.expect("it pauses");
    tx.commit().await.expect("it commits");
    assert_eq!(client.paused().await.expect("pauses can be read").len(), 1);
}

/// Paused jobs are not drained, and their chains can be started and cancelled all the same.
pub async fn a_drain_leaves_paused_types_out<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.pause::<Greet>().await.expect("it pauses");
    let paused = client.start(greet("Ada")).await.expect("a paused type is started");
    let other = client.start(First { number: 1 }).await.expect("it starts");
    assert!(run_all(&client).await.of::<Greet>().is_empty());
    assert_eq!(status(&client, &paused).await, JobStatus::Pending);
    assert_eq!(latest(&client, &paused).await.claims, 0);
    assert_eq!(status(&client, &other).await, JobStatus::Completed);
    client.resume::<Greet>().await.expect("it resumes");
    assert_eq!(run_all(&client).await.of::<Greet>().len(), 1);
}

/// Pausing and resuming are events.
pub async fn a_pause_is_an_event<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut events = client.events();
    let pause = client.pause::<Greet>().by("ada").await.expect("it pauses");
    client.resume::<Greet>().await.expect("it resumes");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(format!("{:?}", events.next().await.expect("the client lives")));
    }
    assert_eq!(
        seen,
        [format!("TypePaused({pause:?})"), format!("TypeResumed({pause:?})")]
    );
}
