//! Deduplication keys. A start or a retry first locks the row of a key and then looks for open chains, and a transaction that
//! opens a chain with the key changes that row. A unique index allows one open chain per key, whatever its starter saw.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use queuert::adapter::{CreatedChain, NewChain};
use queuert::{ChainId, StateError, StateErrorKind, Timestamp, TypeName};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::connection::session::{Query, Session, query};
use crate::row;
use crate::sabotage::Bug;
use crate::store::{Store, integer};
use crate::verbs::create::NewRow;
use crate::verbs::snapshot;

/// A type's number and a key.
pub(crate) type Key = (i32, String);

/// The keys of a call. They stay locked until the transaction ends.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// For items with a key, by place: the newest chain in the store that counts.
    pub(crate) duplicates: HashMap<usize, CreatedChain>,
    /// The keys whose rows this call has inserted, so that no other transaction can have seen them.
    fresh: HashSet<Key>,
}

/// The chains that each item excludes, as one list for all items, and where the part of each item is: a search through the whole
/// list for each item would cost their product.
#[derive(Debug, Default)]
struct Excluded {
    chains: Vec<Uuid>,
    from: Vec<i32>,
    to: Vec<i32>,
}

impl Excluded {
    /// Adds the list of the next item.
    fn push(&mut self, chains: &[ChainId]) {
        self.from.push(integer(self.chains.len() + 1));
        self.chains.extend(chains.iter().map(|chain| chain.as_uuid()));
        self.to.push(integer(self.chains.len()));
    }

    /// Binds the list, the beginnings and the ends.
    fn bind(self, query: Query) -> Query {
        query.bind(self.chains).bind(self.from).bind(self.to)
    }
}

/// Locks the keys of new chains, and finds the chains that they would repeat.
pub(crate) async fn find_duplicates(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[NewChain],
) -> Result<Keys, StateError> {
    let mut places = Vec::new();
    let mut wanted_keys = BTreeSet::new();
    for (place, chain) in chains.iter().enumerate() {
        if let Some(wanted) = &chain.deduplication {
            places.push((place, wanted));
            wanted_keys.insert((store.type_id(&chain.job.type_name), wanted.key.clone()));
        }
    }
    let mut keys = Keys::default();
    if places.is_empty() {
        return Ok(keys);
    }
    if !Bug::Deduplication.is_on() {
        keys.fresh = lock(session, store, wanted_keys).await?;
    }
    let (now, frozen) = snapshot::now(session, store).await?;
    let (mut types, mut texts, mut since) = (Vec::new(), Vec::new(), Vec::new());
    let mut excluded = Excluded::default();
    for (place, wanted) in &places {
        types.push(store.type_id(&chains[*place].job.type_name));
        texts.push(wanted.key.clone());
        since.push(wanted.scope.ended_since(now).map(Timestamp::as_micros));
        excluded.push(&wanted.except);
    }
    let search = query(&store.sql.duplicates).bind(types).bind(texts).bind(since);
    for found in session.fetch(excluded.bind(search)).await? {
        let number = usize::try_from(row::get::<i64>(&found, "place")?).unwrap_or_default();
        let status = row::status(row::get(&found, "status")?);
        if let (Some((place, _)), Some(status)) = (places.get(number.wrapping_sub(1)), status) {
            let existing = CreatedChain {
                id: ChainId::from_uuid(row::get(&found, "id")?),
                status,
                deduplicated: true,
            };
            keys.duplicates.insert(*place, existing);
        }
    }
    if frozen {
        snapshot::confirm_keys(session, store, keys.duplicates.values().map(|found| found.id)).await?;
    }
    Ok(keys)
}

/// Locks keys. Returns the keys that no chain has used before, or whose chains have all been deleted.
async fn lock(session: &mut Session<'_>, store: &Store, keys: BTreeSet<Key>) -> Result<HashSet<Key>, StateError> {
    let (types, texts): (Vec<i32>, Vec<String>) = keys.into_iter().unzip();
    let fresh = session
        .fetch(query(&store.sql.lock_keys).bind(types).bind(texts))
        .await?;
    fresh
        .iter()
        .map(|found| Ok((row::get(found, "type_id")?, row::get(found, "key")?)))
        .collect()
}

/// Gives new chains their keys, which are locked.
pub(crate) async fn take(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[NewRow<'_>],
    keys: &Keys,
    now: Timestamp,
) -> Result<(), StateError> {
    let (mut types, mut chains, mut texts, mut existed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut beside, mut excluded) = (Vec::new(), Excluded::default());
    let mut started: HashMap<ChainId, (&TypeName, &str)> = HashMap::new();
    for row in rows {
        let Some(wanted) = row.deduplication else {
            continue;
        };
        let own = (&row.job.type_name, wanted.key.as_str());
        beside.push(wanted.except.iter().any(|chain| started.get(chain) == Some(&own)));
        started.insert(row.chain, own);
        let key = (store.type_id(&row.job.type_name), wanted.key.clone());
        existed.push(!keys.fresh.contains(&key));
        types.push(key.0);
        texts.push(key.1);
        chains.push(row.chain.as_uuid());
        excluded.push(&wanted.except);
    }
    if chains.is_empty() {
        return Ok(());
    }
    let take = query(&store.sql.take_keys)
        .bind(now.as_micros())
        .bind(types)
        .bind(chains.clone())
        .bind(texts)
        .bind(existed)
        .bind(beside);
    let take = excluded.bind(take);
    let taken = session.fetch(take).await?;
    all_taken(&chains, &taken)
}

/// Gives chains that go on again their keys, which are locked.
pub(crate) async fn retake(session: &mut Session<'_>, store: &Store, chains: Vec<Uuid>) -> Result<(), StateError> {
    let taken = session
        .fetch(query(&store.sql.reopen_keys).bind(chains.clone()))
        .await?;
    all_taken(&chains, &taken)
}

/// Checks that all chains have their keys: the unique index decides.
fn all_taken(chains: &[Uuid], taken: &[PgRow]) -> Result<(), StateError> {
    if taken.len() == chains.len() {
        return Ok(());
    }
    Err(StateError::new(
        StateErrorKind::Conflict,
        "another open chain has the deduplication key; roll the transaction back and run it again",
    ))
}

/// Locks the deduplication keys with which the chains were started, so that no other transaction opens a chain with one of them.
pub(crate) async fn lock_of(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<BTreeMap<ChainId, Key>, StateError> {
    let ids: Vec<Uuid> = chains.iter().map(|chain| chain.as_uuid()).collect();
    let mut keys = BTreeMap::new();
    for found in session.fetch(query(&store.sql.keys_of_chains).bind(ids)).await? {
        let key = (row::get(&found, "type_id")?, row::get(&found, "deduplication_key")?);
        keys.insert(ChainId::from_uuid(row::get(&found, "id")?), key);
    }
    if !keys.is_empty() {
        lock(session, store, keys.values().cloned().collect()).await?;
    }
    Ok(keys)
}

/// The newest open chain of each key that has one. A statement of its own, after the locks.
pub(crate) async fn open_holders(
    session: &mut Session<'_>,
    store: &Store,
    keys: &BTreeMap<ChainId, Key>,
) -> Result<HashMap<Key, ChainId>, StateError> {
    let mut holders = HashMap::new();
    if keys.is_empty() {
        return Ok(holders);
    }
    let each: BTreeSet<Key> = keys.values().cloned().collect();
    let (types, texts): (Vec<i32>, Vec<String>) = each.into_iter().unzip();
    let search = query(&store.sql.open_holders).bind(types).bind(texts);
    for found in session.fetch(search).await? {
        let key = (row::get(&found, "type_id")?, row::get(&found, "key")?);
        holders.insert(key, ChainId::from_uuid(row::get(&found, "chain_id")?));
    }
    Ok(holders)
}
