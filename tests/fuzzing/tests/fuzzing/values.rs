//! Values of every shape through every store: what was accepted comes back equal, and what could not come back is refused
//! at the start.

use std::collections::BTreeMap;

use proptest::prelude::*;
use queuert::adapter::StateAdapter;
use queuert::{Attempt, Client, Error, JobTypes};
use queuert_fuzzing::{Stores, fuzz};
use serde::{Deserialize, Serialize};

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/values.txt");

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sample {
    double: f64,
    single: Option<f32>,
    integers: (i64, u64, i128, u128),
    text: String,
    letter: char,
    by_number: BTreeMap<i64, f64>,
    by_letter: BTreeMap<char, Shape>,
    shape: Shape,
    json: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(f64),
    Tuple(u8, Box<Shape>),
    Struct { inner: Vec<Shape> },
}

#[derive(JobTypes)]
enum Samples {
    #[job(entry, output = Sample)]
    Sample(Sample),
}

/// Any float: of every magnitude, bit by bit, and those that are none.
fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |float| float.is_finite()),
        8 => 0.0..1.0,
        2 => prop::sample::select(vec![0.0, -0.0, f64::MAX, f64::MIN_POSITIVE, f64::from_bits(1), 1e22, 1e23]),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![Just(Shape::Unit), float().prop_map(Shape::Newtype)];
    leaf.prop_recursive(6, 24, 4, |inner| {
        prop_oneof![
            (any::<u8>(), inner.clone()).prop_map(|(number, inner)| Shape::Tuple(number, Box::new(inner))),
            prop::collection::vec(inner, 0..4).prop_map(|inner| Shape::Struct { inner }),
        ]
    })
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        float().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn sample() -> impl Strategy<Value = Sample> {
    let numbers = (
        float(),
        prop::option::of(
            any::<u32>()
                .prop_map(f32::from_bits)
                .prop_filter("finite", |single| single.is_finite()),
        ),
        any::<(i64, u64, i128, u128)>(),
    );
    let maps = (
        prop::collection::btree_map(any::<i64>(), float(), 0..4),
        prop::collection::btree_map(any::<char>(), shape(), 0..4),
    );
    (numbers, any::<String>(), any::<char>(), maps, shape(), json()).prop_map(
        |((double, single, integers), text, letter, (by_number, by_letter), shape, json)| Sample {
            double,
            single,
            integers,
            text,
            letter,
            by_number,
            by_letter,
            shape,
            json,
        },
    )
}

/// Where a value is put that cannot come back.
#[derive(Clone, Copy, Debug)]
enum Spoilt {
    Not,
    Double(f64),
    Single(f32),
    InMap(f64),
    InShape(f64),
    /// Levels under the one of the sample itself.
    Deep(usize),
}

/// serde_json reads no more arrays and objects in one another.
const MAX_DEPTH: usize = 127;

impl Spoilt {
    fn spoil(self, sample: &mut Sample) -> bool {
        match self {
            Self::Not => return true,
            Self::Double(float) => sample.double = float,
            Self::Single(float) => sample.single = Some(float),
            Self::InMap(float) => drop(sample.by_number.insert(0, float)),
            Self::InShape(float) => {
                let inner = vec![Shape::Unit, Shape::Newtype(float)];
                sample.shape = Shape::Tuple(1, Box::new(Shape::Struct { inner }));
            }
            Self::Deep(levels) => {
                let leaf = serde_json::Value::from(1);
                sample.json = (0..levels).fold(leaf, |inner, _| serde_json::Value::from(vec![inner]));
                return levels < MAX_DEPTH;
            }
        }
        false
    }
}

fn spoilt() -> impl Strategy<Value = Spoilt> {
    let double = || prop::sample::select(vec![f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    prop_oneof![
        4 => Just(Spoilt::Not),
        1 => double().prop_map(Spoilt::Double),
        1 => double().prop_map(|float| Spoilt::Single(float as f32)),
        1 => double().prop_map(Spoilt::InMap),
        1 => double().prop_map(Spoilt::InShape),
        1 => (100_usize..260).prop_map(Spoilt::Deep),
        1 => (MAX_DEPTH - 2..MAX_DEPTH + 2).prop_map(Spoilt::Deep),
    ]
}

/// The sign of a zero counts.
fn assert_same(read: &Sample, written: &Sample) {
    assert_eq!(read, written);
    assert_eq!(read.double.to_bits(), written.double.to_bits());
    assert_eq!(read.single.map(f32::to_bits), written.single.map(f32::to_bits));
}

async fn through<S: StateAdapter + Clone>(state: &S, sample: &Sample, possible: bool) {
    let client = Client::new(state.clone());
    let chain = match client.start(sample.clone()).await {
        Ok(chain) if possible => chain,
        Err(Error::Unencodable { part: "input", .. }) if !possible => return,
        other => panic!("possible: {possible}, but {other:?}"),
    };
    let worker = client.worker().process(|job: Attempt<Sample, S>| async move {
        let output = Sample::clone(&job);
        job.finish(output)
    });
    worker.drain().await.expect("well");
    let stored = client
        .get_chain(&chain)
        .await
        .expect("it is read")
        .expect("it is there");
    assert_same(&stored.input, sample);
    assert_same(&client.wait(&chain).await.expect("it has ended well"), sample);
}

#[test]
fn what_is_accepted_comes_back_equal() {
    let stores = Stores::open();
    fuzz(REGRESSIONS, 150, &(sample(), spoilt()), |(mut sample, spoilt)| {
        let possible = spoilt.spoil(&mut sample);
        stores.runtime.block_on(async {
            through(&stores.memory, &sample, possible).await;
            through(&stores.sqlite, &sample, possible).await;
            through(&stores.postgres, &sample, possible).await;
        });
    });
    stores.runtime.block_on(stores.watched.assert_untouched());
}
