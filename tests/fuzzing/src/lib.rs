//! What comes from outside, in every shape.
//!
//! Each test feeds what a generator makes up to the shipping code, a few hundred cases in a few seconds. `corpus/` holds
//! what somebody thought of, one JSON string per line: it is mixed into what is made up, and every line is tried in every
//! run. `regressions/` gets the seed of every case that failed, and these are run first from then on: commit them.

mod stores;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

pub use stores::{Stores, Watched};

/// Runs a check on every line of the corpus, and on so many values that a strategy makes up.
pub fn fuzz<S: Strategy>(regressions: &'static str, cases: u32, strategy: &S, check: impl Fn(S::Value)) {
    let config = ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        // A case that fails on a database is shrunk in seconds.
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(strategy, |value| {
        check(value);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// The lines of a file of `corpus/`.
pub fn lines(corpus: &str) -> Vec<String> {
    let lines = corpus.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line} is no JSON string: {error}")))
        .collect()
}

/// Any text, with a liking for what is in the corpus, whole or in pieces.
pub fn text(corpus: &str) -> impl Strategy<Value = String> + use<> {
    let lines = lines(corpus);
    let pieces = {
        let cut = (
            prop::sample::select(lines.clone()),
            any::<prop::sample::Index>(),
            any::<bool>(),
        );
        let piece = cut.prop_map(|(line, index, front)| {
            let mut at = index.index(line.len() + 1);
            while !line.is_char_boundary(at) {
                at -= 1;
            }
            match front {
                true => line[..at].to_owned(),
                false => line[at..].to_owned(),
            }
        });
        prop::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat())
    };
    prop_oneof![
        2 => prop::sample::select(lines),
        3 => pieces,
        2 => any::<String>(),
        1 => "[ -~]{0,60}",
    ]
}
