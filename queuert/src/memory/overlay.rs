//! The changes of a transaction, which no other transaction sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::deduplicate::KeyIndex;
use super::store::{Edge, Row};
use crate::id::JobId;
use crate::job::TypeName;
use crate::pause::Pause;
use crate::payload::Payload;
use crate::time::Timestamp;

/// The changes of a transaction over the committed store. Cloned by savepoints; rows are shared until they change.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    /// Rows as the transaction sees them; `None` for a deleted one.
    pub(super) rows: BTreeMap<JobId, Option<Arc<Row>>>,
    /// Edges that were added (`true`) or removed. Kept as differences, because an edge of a deleted job is removed
    /// without locking the chain at its other end.
    pub(super) edges: BTreeMap<Edge, bool>,
    /// Chains with a key that were started or retried here: the committed index of keys does not know them as open.
    pub(super) reopened: KeyIndex,
    /// The earliest time at which it created a job.
    pub(super) created: Option<Timestamp>,
    /// The application's own entries.
    pub(super) data: BTreeMap<String, Payload>,
    /// Pauses that were written; `None` for a deleted one.
    pub(super) pauses: BTreeMap<TypeName, Option<Pause>>,
}
