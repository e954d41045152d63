//! A state adapter that counts the calls of another one: what a job costs in statements.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use queuert::StateError;
use queuert::adapter::StateAdapter;

/// Passes every verb on and counts it. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl<S> Counted<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }

    /// Takes the counts so far, each divided by `units`.
    pub(crate) fn take(&self, units: usize) -> BTreeMap<String, f64> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner));
        let per_unit = |(verb, count): (&str, usize)| (verb.to_owned(), count as f64 / units as f64);
        calls.into_iter().map(per_unit).collect()
    }

    async fn count<T>(
        &self,
        verb: &'static str,
        _items: usize,
        call: impl Future<Output = Result<T, StateError>>,
    ) -> Result<T, StateError> {
        *self
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(verb)
            .or_default() += 1;
        call.await
    }
}

impl<S: StateAdapter> StateAdapter for Counted<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    queuert::forward_state! { self => self.inner, via count }
}
