//! What is known of each job type: its series and the texts for its spans, made once.
//!
//! An instrument that is given attributes looks its series up by them, and hashes every byte of their keys and values. Here
//! a series is bound when it is first recorded, and is a pointer from then on.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::slice::from_ref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::metrics::{BoundCounter, BoundHistogram, Histogram};
use opentelemetry::{KeyValue, StringValue};
use queuert::__task::SharedLock;
use queuert::{AttemptOutcome, TypeName};

use crate::attributes as names;
use crate::instruments::{COUNTERS, Count, Instruments};

/// All types that were heard of. There are as many as the program has job types.
#[derive(Default)]
pub(crate) struct Types {
    known: SharedLock<HashMap<TypeName, Arc<OfType>, BuildHasherDefault<NameHasher>>>,
}

/// FNV-1a: the names are few, short, and the program's own, so nobody makes them collide, and every event hashes one.
struct NameHasher(u64);

impl Default for NameHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Types {
    /// `call` may not run code of others: it has the lock.
    pub(crate) fn with<T>(&self, name: &TypeName, call: impl FnOnce(&OfType) -> T) -> T {
        let known = self.known.read();
        if let Some(of_type) = known.get(name) {
            return call(of_type);
        }
        drop(known);
        let mut known = self.known.write();
        let of_type = known.entry(name.clone()).or_insert_with(|| Arc::new(OfType::new(name)));
        let of_type = Arc::clone(of_type);
        drop(known);
        call(&of_type)
    }
}

/// How a chain ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChainEnd {
    Completed,
    Dead,
    Cancelled,
}

impl ChainEnd {
    fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

type Series = OnceLock<BoundCounter<u64>>;
type Distribution = OnceLock<BoundHistogram<f64>>;

/// One type. A series that was never recorded is not bound: the SDK would export it.
pub(crate) struct OfType {
    name: StringValue,
    job: KeyValue,
    chain: KeyValue,
    counters: [Series; COUNTERS],
    completed_by_worker: Series,
    completed_outside: Series,
    wait: Distribution,
    job_duration: Distribution,
    attempt_durations: [Distribution; names::OUTCOMES.len()],
    chain_durations: [Distribution; 3],
    span_names: [OnceLock<String>; names::OPERATIONS.len()],
}

impl OfType {
    fn new(name: &TypeName) -> Self {
        let name = StringValue::from(Arc::<str>::from(name.as_str()));
        Self {
            job: KeyValue::new(names::JOB_TYPE, name.clone()),
            chain: KeyValue::new(names::CHAIN_TYPE, name.clone()),
            name,
            counters: [const { OnceLock::new() }; COUNTERS],
            completed_by_worker: OnceLock::new(),
            completed_outside: OnceLock::new(),
            wait: OnceLock::new(),
            job_duration: OnceLock::new(),
            attempt_durations: Default::default(),
            chain_durations: Default::default(),
            span_names: Default::default(),
        }
    }

    /// The attribute with the type of a job.
    pub(crate) fn job(&self) -> &KeyValue {
        &self.job
    }

    /// The name as an attribute's value, and that of a span for this operation.
    pub(crate) fn span(&self, operation: names::Operation) -> (StringValue, String) {
        let name = self.span_names[operation as usize]
            .get_or_init(|| format!("{} {}", operation.as_str(), self.name.as_str()));
        (self.name.clone(), name.clone())
    }

    /// Counts something about a job.
    pub(crate) fn count_job(&self, instruments: &Instruments, count: Count) {
        self.counters[count as usize]
            .get_or_init(|| instruments.counter(count).bind(from_ref(&self.job)))
            .add(1);
    }

    /// Counts something about a chain.
    pub(crate) fn count_chain(&self, instruments: &Instruments, count: Count) {
        self.counters[count as usize]
            .get_or_init(|| instruments.counter(count).bind(from_ref(&self.chain)))
            .add(1);
    }

    /// Counts a completion.
    pub(crate) fn count_completed(&self, instruments: &Instruments, by_worker: bool) {
        let (series, by) = match by_worker {
            true => (&self.completed_by_worker, "worker"),
            false => (&self.completed_outside, "outside"),
        };
        let bind = || {
            let attributes = [self.job.clone(), KeyValue::new(names::COMPLETED_BY, by)];
            instruments.counter(Count::JobCompleted).bind(&attributes)
        };
        series.get_or_init(bind).add(1);
    }

    pub(crate) fn waited(&self, instruments: &Instruments, duration: Duration) {
        record(&self.wait, &instruments.wait, duration, || vec![self.job.clone()]);
    }

    pub(crate) fn job_took(&self, instruments: &Instruments, duration: Option<Duration>) {
        if let Some(duration) = duration {
            record(&self.job_duration, &instruments.job, duration, || {
                vec![self.job.clone()]
            });
        }
    }

    pub(crate) fn attempt_took(&self, instruments: &Instruments, outcome: &AttemptOutcome, duration: Duration) {
        let outcome = names::outcome_index(outcome);
        record(&self.attempt_durations[outcome], &instruments.attempt, duration, || {
            vec![
                self.job.clone(),
                KeyValue::new(names::OUTCOME, names::OUTCOMES[outcome]),
            ]
        });
    }

    pub(crate) fn chain_took(&self, instruments: &Instruments, end: ChainEnd, duration: Option<Duration>) {
        if let Some(duration) = duration {
            record(
                &self.chain_durations[end as usize],
                &instruments.chain,
                duration,
                || vec![self.chain.clone(), KeyValue::new(names::CHAIN_STATUS, end.as_str())],
            );
        }
    }
}

fn record(
    bound: &Distribution,
    histogram: &Histogram<f64>,
    duration: Duration,
    attributes: impl FnOnce() -> Vec<KeyValue>,
) {
    bound
        .get_or_init(|| histogram.bind(&attributes()))
        .record(duration.as_secs_f64());
}
