//! Deduplication keys that are given twice in one call.

use std::collections::{HashMap, HashSet};

use crate::adapter::{CreatedChain, NewChain};
use crate::id::ChainId;
use crate::job::JobStatus;

/// The chains with a deduplication key that one call of [`create_chains`](crate::adapter::StateAdapter::create_chains) has created
/// so far. An earlier item of a call counts for a later one in every scope: it is open, and it was created now.
///
/// Asking for one item and noting one item each cost the same, however many items the call has: a store asks for every
/// item before it looks at what it had stored, and notes every chain that it creates.
#[derive(Debug, Default)]
pub struct KeysOfCall<'a> {
    /// By type and key, in order of id.
    chains: HashMap<(&'a str, &'a str), Vec<(ChainId, JobStatus)>>,
}

impl<'a> KeysOfCall<'a> {
    /// Nothing has been created yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The chain of this call that the item repeats: of those that it does not leave out, the one with the largest id.
    /// `None` if it has no key, or repeats none. It wins over whatever the store had before the call, which is older.
    pub fn find(&self, chain: &NewChain) -> Option<CreatedChain> {
        let wanted = chain.deduplication.as_ref()?;
        let earlier = self.chains.get(&(chain.job.type_name.as_str(), wanted.key.as_str()))?;
        let except: HashSet<&ChainId> = wanted.except.iter().collect();
        let (id, status) = earlier.iter().rev().find(|(id, _)| !except.contains(id))?;
        Some(CreatedChain {
            id: *id,
            status: *status,
            deduplicated: true,
        })
    }

    /// Notes that the item was created as a chain in this status.
    pub fn created(&mut self, chain: &'a NewChain, status: JobStatus) {
        let Some(wanted) = &chain.deduplication else {
            return;
        };
        let key = (chain.job.type_name.as_str(), wanted.key.as_str());
        let id = chain.job.id.as_chain();
        let chains = self.chains.entry(key).or_default();
        let place = chains.partition_point(|(other, _)| *other < id);
        chains.insert(place, (id, status));
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::adapter::NewJob;
    use crate::deduplication::Deduplication;
    use crate::id::JobId;
    use crate::payload::Payload;

    fn chain(id: u128, type_name: &'static str, key: Option<Deduplication>) -> NewChain {
        let id = JobId::from_uuid(Uuid::from_u128(id));
        let mut chain = NewChain::new(NewJob::new(id, type_name, Payload::from_text("1")));
        chain.deduplication = key;
        chain
    }

    fn found(keys: &KeysOfCall<'_>, type_name: &'static str, key: Deduplication) -> Option<u128> {
        let found = keys.find(&chain(99, type_name, Some(key)))?;
        assert!(found.deduplicated);
        Some(found.id.as_uuid().as_u128())
    }

    #[test]
    fn a_key_of_a_type_gives_the_chain_with_the_largest_id() {
        let key = || Some(Deduplication::while_open("key"));
        let chains = [
            chain(2, "mail", key()),
            chain(3, "mail", key()),
            chain(1, "mail", key()),
        ];
        let mut keys = KeysOfCall::new();
        assert_eq!(found(&keys, "mail", "key".into()), None);
        for chain in &chains {
            keys.created(chain, JobStatus::Pending);
        }
        assert_eq!(found(&keys, "mail", "key".into()), Some(3));
        assert_eq!(found(&keys, "mail", Deduplication::forever("key")), Some(3));
        assert_eq!(found(&keys, "mail", "other".into()), None);
        assert_eq!(found(&keys, "other", "key".into()), None);
    }

    #[test]
    fn a_chain_that_is_left_out_does_not_count() {
        let chains = [1, 2, 3].map(|id| chain(id, "mail", Some("key".into())));
        let mut keys = KeysOfCall::new();
        for chain in &chains {
            keys.created(chain, JobStatus::Blocked);
        }
        let ids = chains.each_ref().map(|chain| chain.job.id.as_chain());
        let without = |ids: &[ChainId]| Deduplication::while_open("key").except_ids(ids.iter().copied());
        assert_eq!(found(&keys, "mail", without(&ids[2..])), Some(2));
        assert_eq!(found(&keys, "mail", without(&ids[1..])), Some(1));
        assert_eq!(found(&keys, "mail", without(&ids)), None);
    }

    #[test]
    fn a_chain_without_a_key_is_not_noted_and_finds_nothing() {
        let keyless = chain(1, "mail", None);
        let mut keys = KeysOfCall::new();
        keys.created(&keyless, JobStatus::Pending);
        assert!(keys.chains.is_empty());
        assert_eq!(keys.find(&keyless), None);
    }
}
