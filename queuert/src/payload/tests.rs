use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Deserialize;

use super::exact::MAX_DEPTH;
use super::*;

/// Accepted, and equal when it comes back.
#[track_caller]
fn kept<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) {
    let payload = Payload::encode_own(&value).expect("it is accepted");
    assert_eq!(payload.decode::<T>().expect("it is read"), value, "{payload:?}");
}

#[track_caller]
fn refused<T: Serialize + DeserializeOwned>(value: &T) -> String {
    Payload::encode_own(value).expect_err("it is refused").to_string()
}

#[track_caller]
fn kept_bits(value: f64) {
    let payload = Payload::encode_own(&value).expect("it is accepted");
    let read: f64 = payload.decode().expect("it is read");
    assert_eq!(read.to_bits(), value.to_bits(), "{payload:?}");
    if let single @ f32::MIN..=f32::MAX = value as f32 {
        let payload = Payload::encode_own(&single).expect("it is accepted");
        let read: f32 = payload.decode().expect("it is read");
        assert_eq!(read.to_bits(), single.to_bits(), "{payload:?}");
    }
}

#[test]
fn every_finite_float_comes_back_bit_by_bit() {
    for value in [
        0.0,
        -0.0,
        0.1,
        1.0,
        f64::MIN,
        f64::MAX,
        f64::EPSILON,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        -f64::from_bits(1),
        f64::from_bits(0x000f_ffff_ffff_ffff),
        9_007_199_254_740_993.0,
        1e22,
        1e23,
        123_456_789.123_456_79,
    ] {
        kept_bits(value);
    }
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        kept_bits(random.f64());
        let any = f64::from_bits(random.u64(..));
        if any.is_finite() {
            kept_bits(any);
        }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Wrapped<T> {
    field: T,
    tuple: (u8, T),
    list: Vec<T>,
    map: BTreeMap<String, T>,
    variant: Variant<T>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Variant<T> {
    Newtype(T),
    Tuple(u8, T),
    Struct { field: T },
}

#[test]
fn a_float_that_is_not_finite_is_refused_wherever_it_is() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(refused(&value).contains("which JSON does not have"));
        refused(&Some(value));
        refused(&(value as f32));
        refused(&[1.0, value]);
        refused(&(1, value));
        refused(&BTreeMap::from([(1, value)]));
        refused(&Variant::Newtype(value));
        refused(&Variant::Tuple(1, value));
        refused(&Variant::Struct { field: value });
        refused(&Box::new(vec![Some(Variant::Newtype((value, ())))]));
    }
    let message = refused(&f64::NAN);
    assert!(message.contains("NaN") && message.contains("Option"), "{message}");
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Nested {
    Leaf(u8),
    List(Vec<Nested>),
    Map(BTreeMap<String, Nested>),
}

fn nested(depth: usize, map: bool) -> Nested {
    (0..depth).fold(Nested::Leaf(1), |inner, _| match map {
        true => Nested::Map(BTreeMap::from([("[\"{".to_owned(), inner)])),
        false => Nested::List(vec![inner]),
    })
}

#[test]
fn what_is_accepted_is_not_too_deep_to_be_read() {
    for map in [false, true] {
        kept(nested(MAX_DEPTH, map));
        // Side by side is not in one another.
        kept(vec![nested(MAX_DEPTH - 1, map), nested(MAX_DEPTH - 1, map)]);
        let message = refused(&nested(MAX_DEPTH + 1, map));
        assert!(message.contains("127") && message.contains("flatter"), "{message}");
        refused(&vec![nested(MAX_DEPTH, map)]);
        refused(&nested(1_000, map));
    }
}

#[test]
fn a_raw_value_is_kept_as_it_is_and_not_too_deep_either() {
    let raw = |text: String| serde_json::value::RawValue::from_string(text).expect("it is JSON");
    for text in [
        "1e400",
        "123456789012345678901234567890",
        "\"\\ud800\"",
        "\"\\u0000 [[{ \\\" [\"",
        "{ \"a\" :\n[ 1 ,\t2 ] }",
        "-0",
    ] {
        let payload = Payload::encode_own(&vec![raw(text.to_owned())]).expect("it is accepted");
        let read: Vec<Box<serde_json::value::RawValue>> = payload.decode().expect("it is read");
        assert_eq!(read[0].get(), text);
    }
    let deep = |depth| raw(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    assert!(Payload::encode_own(&deep(MAX_DEPTH)).is_ok());
    refused(&deep(MAX_DEPTH + 1));
    refused(&vec![deep(MAX_DEPTH)]);
}

#[test]
fn the_extremes_of_integers_come_back() {
    kept((i64::MIN, i64::MAX, u64::MAX));
    kept((i128::MIN, i128::MAX, u128::MAX, u128::from(u64::MAX) + 1));
    kept(Wrapped {
        field: u128::MAX,
        tuple: (1, u128::MAX),
        list: vec![u128::MAX],
        map: BTreeMap::from([("x".to_owned(), u128::MAX)]),
        variant: Variant::Struct { field: u128::MAX },
    });
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(u128),
    Text(String),
}

/// serde reads no such integers in untagged enums.
#[test]
fn a_wide_integer_is_refused_where_it_could_not_be_read() {
    kept(Either::Text("7".to_owned()));
    for number in [7, u128::MAX] {
        let message = refused(&Either::Number(number));
        assert!(message.contains("u128") && message.contains("as a text"), "{message}");
    }
}

#[test]
fn texts_with_any_character_come_back() {
    let every: String = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
    kept(every);
    kept("\0".to_owned());
    kept('\0');
    kept("\\ud800 \\u0000 \u{2028}\u{feff}\u{fffe}".to_owned());
}

#[test]
fn maps_with_keys_that_are_no_texts_come_back() {
    kept(BTreeMap::from([(i64::MIN, 1), (i64::MAX, 2)]));
    kept(BTreeMap::from([(u128::MAX, 1)]));
    kept(BTreeMap::from([(true, 1), (false, 2)]));
    kept(BTreeMap::from([('\0', 1), ('"', 2)]));
    kept(BTreeMap::from([("\0\u{1f600}".to_owned(), 1)]));
    refused(&BTreeMap::from([((1, 2), 3)]));
    refused(&BTreeMap::from([(vec![1], 3)]));
}
