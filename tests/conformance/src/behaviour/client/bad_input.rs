//! What is stored and cannot be read is contained: typed errors name the row, and everything else goes on.

use queuert::{ChainRef, Error, JobStatus, JobType, testing};

use super::assert_error;
use super::jobs::{AfterOne, Count, Decide, Greet, greet, run_all};
use super::probe::{
    chain, chain_count, chain_ids, job_ids, latest, own_id, smuggle, smuggle_output, status, unknown_chain,
};
use crate::behaviour::PairFixture;

/// Texts that are no input of a `Greet`: no JSON, another shape, a missing field, nothing.
const GARBAGE: [&str; 5] = [r#"{"name": "#, "7", r#"{"name":5}"#, "{}", ""];

/// An input that cannot be decoded is an error that names the row and the type, wherever it is read typed.
pub async fn an_undecodable_input_names_its_row<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for (number, garbage) in (1..).zip(GARBAGE) {
        let job = own_id(number);
        smuggle(&client, job, Greet::NAME, garbage).await;
        let reference = ChainRef::<Greet>::new(job.as_chain());
        let mut tx = client.begin().await.expect("a transaction opens");
        for error in [
            client.get_chain(reference).await.map(drop),
            client.get_job::<Greet>(job).await.map(drop),
            client.open::<Greet>(reference).within(&mut tx).await.map(drop),
        ] {
            assert_error!(
                error,
                Error::Undecodable { id, ref type_name, part: "input", ref message }
                    if id == job && type_name.as_str() == Greet::NAME && !message.is_empty()
            );
        }
    }
    assert_error!(testing::started::<Greet, _>(&client).await, Error::Undecodable { .. });
}

/// Rows that cannot be decoded are listed and read as records like any other.
pub async fn undecodable_rows_are_listed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let good = client.start(Count { number: 1 }).await.expect("it starts");
    for (number, garbage) in (1..).zip(GARBAGE) {
        smuggle(&client, own_id(number), Greet::NAME, garbage).await;
    }
    let chains = client.list_chains().await.expect("they can be listed");
    assert_eq!(chains.items.len(), 6);
    assert!(chain_ids(&chains).contains(&good.id()));
    assert_eq!(client.list_jobs().await.expect("they can be listed").items.len(), 6);
    for (number, garbage) in (1..).zip(GARBAGE) {
        let record = chain(&client, own_id(number).as_chain()).await;
        assert_eq!(record.input.as_str(), garbage, "the text is kept as it is");
    }
}

/// A job whose input cannot be decoded dies when it is run, with an error that says so; the others run.
pub async fn an_undecodable_job_dies_alone<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    smuggle(&client, own_id(1), Greet::NAME, GARBAGE[0]).await;
    let good = client.start(greet("Ada")).await.expect("it starts");
    assert_eq!(run_all(&client).await.len(), 2);
    assert_eq!(status(&client, &good).await, JobStatus::Completed);
    let dead = latest(&client, own_id(1).as_chain()).await;
    assert_eq!((dead.status, dead.attempt), (JobStatus::Dead, 1));
    let message = dead.last_error.expect("the failure is on record").message;
    assert!(
        message.contains(&own_id(1).to_string()) && message.contains(Greet::NAME),
        "{message}"
    );
}

/// An output that cannot be decoded is an error that names the job that wrote it.
pub async fn an_undecodable_output_names_its_row<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for garbage in ["{", "true", ""] {
        let started = client.start(greet("Ada")).await.expect("it starts");
        smuggle_output(&client, started.id(), garbage).await;
        for error in [
            client.get_chain(&started).await.map(drop),
            client.wait(&started).await.map(drop),
        ] {
            assert_error!(
                error,
                Error::Undecodable { id, ref type_name, part: "output", .. }
                    if id == started.id().first_job() && type_name.as_str() == Greet::NAME
            );
        }
        let record = chain(&client, &started).await;
        assert_eq!(record.status, JobStatus::Completed);
        assert_eq!(record.output.expect("it has an output").as_str(), garbage);
    }
}

/// An output of a job that is no end of its chain cannot be decoded.
pub async fn an_output_of_the_wrong_end_is_undecodable<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(Decide { amount: 1 }).await.expect("it starts");
    smuggle_output(&client, started.id(), "true").await;
    let result = client.wait(&started).await.map(drop);
    assert_error!(
        result,
        Error::Undecodable { id, ref type_name, part: "output", .. }
            if id == started.id().first_job() && type_name.as_str() == Decide::NAME
    );
}

/// What waits for a chain whose output cannot be decoded dies when it is run, with an error that names the chain.
pub async fn an_undecodable_blocker_is_named<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    smuggle_output(&client, blocker.id(), "{").await;
    run_all(&client).await;
    let dead = latest(&client, &waiting).await;
    assert_eq!(dead.status, JobStatus::Dead);
    let message = dead.last_error.expect("the failure is on record").message;
    assert!(message.contains(&blocker.id().to_string()), "{message}");
}

/// Chains of a type that nobody knows are kept, listed, operated and left alone by workers. (VC3)
pub async fn unknown_types_are_left_alone<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let job = own_id(1);
    smuggle(&client, job, "unheard-of", r#"{"what":"ever"}"#).await;
    assert!(run_all(&client).await.is_empty());
    let reference = ChainRef::<Greet>::new(job.as_chain());
    let refused = client.get_chain(reference).await;
    assert_error!(refused, Error::TypeMismatch { id, actual, .. } if id == job && actual.as_str() == "unheard-of");
    assert_error!(client.wait(reference).await, Error::TypeMismatch { .. });
    let page = client
        .list_jobs()
        .types(["unheard-of"])
        .await
        .expect("they can be listed");
    assert_eq!(job_ids(&page), [job]);
    client.trigger(job).await.expect("it can be triggered");
    client.cancel(job.as_chain()).await.expect("it can be cancelled");
    client.retry(job.as_chain()).await.expect("it can be retried");
    client.delete(job.as_chain()).await.expect("it can be deleted");
    assert_eq!(chain_count(&client).await, 0);
}

/// Inputs and outputs go through the store unharmed: any text, and much of it. (9.5 H25)
pub async fn any_text_goes_through_unharmed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let names = [
        String::new(),
        "Ada \"the Countess\" \\ O'Hara; drop table jobs --".to_owned(),
        "\u{0}\u{1}\t\r\n\u{7f}\u{2028}".to_owned(),
        "Zażółć gęślą jaźń 🦀 ก็ \u{202e}".to_owned(),
        "x".repeat(1_000_000),
    ];
    for name in names {
        let started = client.start(greet(&name)).await.expect("it starts");
        let found = client
            .get_chain(&started)
            .await
            .expect("it can be read")
            .expect("it exists");
        assert!(found.input.name == name);
        run_all(&client).await;
        assert!(client.wait(&started).await.expect("it ended") == super::jobs::greeting(&name));
    }
}

/// Asking for what is not there never changes anything.
pub async fn asking_for_nothing_changes_nothing<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let nobody = unknown_chain();
    assert_error!(client.cancel(nobody).await, Error::ChainNotFound(_));
    assert_error!(client.retry(nobody).await, Error::ChainNotFound(_));
    assert_error!(client.trigger(nobody.first_job()).await, Error::JobNotFound(_));
    assert_error!(client.get_blockers(nobody.first_job()).await, Error::JobNotFound(_));
    assert!(client.delete(nobody).await.expect("it is skipped").is_empty());
    assert_eq!(chain_count(&client).await, 0);
}
