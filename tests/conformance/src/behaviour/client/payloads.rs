//! What is stored comes back equal, and what could not come back is refused before it is stored.

use std::collections::BTreeMap;

use queuert::adapter::StateAdapter;
use queuert::{Attempt, AttemptOutcome, Client, Error, JobStatus, JobType, JobTypes};
use serde::{Deserialize, Serialize};

use super::assert_error;
use super::probe::{chain_count, job_count, latest, status};
use crate::behaviour::PairFixture;

/// Values at the edge of what JSON can hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Extreme {
    floats: Vec<f64>,
    single: Option<f32>,
    wide: (i64, u64, i128, u128),
    text: String,
    keys: BTreeMap<i64, BTreeMap<char, bool>>,
    nest: Nest,
}

/// Lists in lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Nest(Vec<Nest>);

/// Ends with what it was given, or goes on with it.
#[derive(JobTypes)]
enum Extremes {
    #[job(entry, continues = [Extreme], output = Extreme)]
    Extreme(Extreme),
}

/// How many arrays and objects may lie in one another.
const MAX_DEPTH: usize = 127;

fn nest(depth: usize) -> Nest {
    (1..depth).fold(Nest::default(), |inner, _| Nest(vec![inner]))
}

fn extremes() -> Extreme {
    let floats = [
        0.1,
        -0.0,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        0.123_456_789_012_345_67,
        9.007_199_254_740_993e15,
        1e23,
        0.913_473_117_331_034_7,
    ];
    // All over the range from 0 to 1.
    let scattered = (1..200_u64).map(|number| {
        let mantissa = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12;
        f64::from_bits(0x3ff0_0000_0000_0000 | mantissa) - 1.0
    });
    Extreme {
        floats: floats.into_iter().chain(scattered).collect(),
        single: Some(f32::from_bits(1)),
        wide: (i64::MIN, u64::MAX, i128::MIN, u128::MAX),
        text: (0..=u32::from(char::MAX))
            .step_by(7)
            .filter_map(char::from_u32)
            .collect(),
        keys: BTreeMap::from([(i64::MIN, BTreeMap::from([('\0', true), ('"', false)]))]),
        nest: nest(MAX_DEPTH - 1),
    }
}

/// Each of them is one thing that JSON cannot hold, or nobody could read.
fn impossible() -> Vec<Extreme> {
    let with_float = |float| Extreme {
        floats: vec![1.0, float],
        ..Extreme::default()
    };
    vec![
        with_float(f64::NAN),
        with_float(f64::INFINITY),
        with_float(f64::NEG_INFINITY),
        // Would come back as `None`.
        Extreme {
            single: Some(f32::NAN),
            ..Extreme::default()
        },
        Extreme {
            nest: nest(MAX_DEPTH),
            ..Extreme::default()
        },
        Extreme {
            nest: nest(200),
            ..Extreme::default()
        },
    ]
}

/// `PartialEq` takes -0.0 for 0.0.
#[track_caller]
fn assert_same(read: &Extreme, written: &Extreme) {
    assert_eq!(read, written);
    let bits = |extreme: &Extreme| extreme.floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(read), bits(written));
}

async fn run<S: StateAdapter>(
    client: &Client<S>,
    end: impl Fn() -> Extreme + Copy + Send + Sync + 'static,
) -> AttemptOutcome {
    let worker = client
        .worker()
        .process(move |job: Attempt<Extreme, S>| async move { job.finish(end()) });
    let mut drained = worker.drain().await.expect("the store answers");
    assert_eq!(drained.attempts.len(), 1);
    drained.attempts.remove(0).outcome
}

/// Inputs, next inputs and outputs come back equal, float by float and bit by bit, whoever wrote them.
pub async fn what_is_stored_comes_back_equal<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let written = extremes();
    let chain = client.start(written.clone()).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client.open::<Extreme>(&chain).within(&mut tx).await;
    let open = open.expect("it can be opened");
    let first = client.get_job::<Extreme>(chain.id().first_job()).await;
    assert_same(&first.expect("it is read").expect("it is there").input, &written);
    let next = open.continue_with(written.clone()).await.expect("it continues");
    let next = next.record().id;
    tx.commit().await.expect("it commits");
    let read = client
        .get_job::<Extreme>(next)
        .await
        .expect("it is read")
        .expect("it is there");
    assert_same(&read.input, &written);
    assert!(matches!(run(&client, extremes).await, AttemptOutcome::Finished));
    assert_same(&client.wait(&chain).await.expect("it has ended"), &written);

    let outside = client.start(Extreme::default()).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client.open::<Extreme>(&outside).within(&mut tx).await;
    open.expect("it can be opened")
        .finish(written.clone())
        .await
        .expect("it finishes");
    tx.commit().await.expect("it commits");
    assert_same(&client.wait(&outside).await.expect("it has ended"), &written);
}

/// A value that could not come back is refused before anything is stored, with its type and with what to do.
pub async fn what_could_not_come_back_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for impossible in impossible() {
        let refused = client
            .start(impossible.clone())
            .await
            .map(drop)
            .expect_err("it is refused");
        let Error::Unencodable {
            type_name,
            part: "input",
            ..
        } = &refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(type_name.as_str(), Extreme::NAME);
        assert!(refused.to_string().contains("; "), "it says what to do: {refused}");
        let batch = [Extreme::default(), impossible];
        match client.start_many(batch).await {
            Err(Error::InBatch { index: 1, source, .. }) => {
                assert!(matches!(*source, Error::Unencodable { .. }), "{source:?}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(chain_count(&client).await, 0);
    let chain = client.start(Extreme::default()).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    for impossible in impossible() {
        let open = client
            .open::<Extreme>(&chain)
            .within(&mut tx)
            .await
            .expect("it is open");
        assert_error!(
            open.finish(impossible.clone()).await,
            Error::Unencodable { part: "output", .. }
        );
        let open = client
            .open::<Extreme>(&chain)
            .within(&mut tx)
            .await
            .expect("it is open");
        let refused = open.continue_with(impossible).await.map(drop);
        assert_error!(refused, Error::Unencodable { part: "input", .. });
    }
    tx.commit().await.expect("it commits");
    assert_eq!(status(&client, &chain).await, JobStatus::Pending);
    assert_eq!(job_count(&client).await, 1);
}

/// A processor whose output could not come back has failed for good, and its error says why.
pub async fn an_output_that_could_not_come_back_ends_its_job<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(Extreme::default()).await.expect("it starts");
    let outcome = run(&client, || Extreme {
        floats: vec![f64::NAN],
        ..Extreme::default()
    });
    assert!(matches!(outcome.await, AttemptOutcome::Died { .. }));
    let dead = latest(&client, &chain).await;
    assert_eq!((dead.status, dead.attempt), (JobStatus::Dead, 1));
    let message = dead.last_error.expect("the failure is on record").message;
    assert!(message.contains("NaN") && message.contains(Extreme::NAME), "{message}");
}
