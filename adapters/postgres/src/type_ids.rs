//! The numbers under which type names are stored.
//!
//! A number is derived from the name, so it means the same type in every process and in every copy of the database. A copy
//! that has lost the row of a name (a replica that lagged behind and was promoted, an older backup, a schema that was made
//! anew) gives the name the same number again, and never gives that number to another name. Every statement that writes
//! numbers checks that the database at hand has them, under these names: see `fragments/types_exist.sql`. A row of the table
//! that has another number than that of its name was not written by this library: nothing is read or claimed by it.

use std::collections::{HashMap, HashSet};

use queuert::__task::SharedLock;
use queuert::{StateError, TypeName};
use sha2::{Digest, Sha256};
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection};

use crate::connection::connect::Access;
use crate::connection::reserve::open_beside;
use crate::connection::session::{Query, Session, query};
use crate::error::{corrupt, misconfigured, translate};
use crate::row;
use crate::sabotage::Bug;
use crate::statements::{Filling, fill, text};
use crate::store::Store;
use crate::transaction::Work;

/// The number of a name.
fn derived(name: &str) -> i32 {
    let digest = Sha256::digest(name.as_bytes());
    i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// TypeIds with their numbers, each once, as a statement checks them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) numbers: Vec<i32>,
    pub(crate) names: Vec<String>,
}

impl Expected {
    /// Binds the numbers and the names.
    pub(crate) fn bind(&self, query: Query) -> Query {
        query.bind(self.numbers.clone()).bind(self.names.clone())
    }
}

/// The rows of the table of types that this process has seen.
#[derive(Debug, Default)]
pub(crate) struct TypeIds(SharedLock<Known>);

#[derive(Debug, Default)]
struct Known {
    numbers: HashMap<TypeName, i32>,
    names: HashMap<i32, TypeName>,
}

impl Known {
    /// Remembers a row of the table, and says whether it has the number of its name. If not, it is not remembered.
    fn learn(&mut self, number: i32, name: TypeName) -> bool {
        // The sabotaged build numbers types in the order in which they come, and believes any number.
        let sound = Bug::Types.is_on() || derived(name.as_str()) == number;
        if sound {
            self.numbers.insert(name.clone(), number);
            self.names.insert(number, name);
        }
        sound
    }
}

impl TypeIds {
    /// The number of a type that has been seen.
    pub(crate) fn number(&self, name: &TypeName) -> Option<i32> {
        let known = self.0.read();
        known.numbers.get(name).copied()
    }

    /// The types that have not been seen.
    pub(crate) fn unknown<'a>(&self, names: impl Iterator<Item = &'a TypeName>) -> Vec<TypeName> {
        let known = self.0.read();
        names
            .filter(|name| !known.numbers.contains_key(*name))
            .cloned()
            .collect()
    }

    /// The name of a type that has been seen.
    pub(crate) fn name(&self, number: i32) -> Option<TypeName> {
        let known = self.0.read();
        known.names.get(&number).cloned()
    }

    /// All names that have been seen.
    fn names(&self) -> Vec<TypeName> {
        let known = self.0.read();
        known.numbers.keys().cloned().collect()
    }

    /// Remembers rows of the table. A row with another number than that of its name is left out.
    fn learn(&self, rows: &[PgRow]) -> Result<(), StateError> {
        let mut known = self.0.write();
        for found in rows {
            known.learn(
                row::get(found, "id")?,
                TypeName::from(row::get::<String>(found, "name")?),
            );
        }
        Ok(())
    }

    /// The same for rows that were looked for by name. It is an error if one has another number than that of its name.
    fn learn_wanted(&self, rows: &[PgRow]) -> Result<(), StateError> {
        let mut known = self.0.write();
        for found in rows {
            let (number, name): (i32, String) = (row::get(found, "id")?, row::get(found, "name")?);
            if !known.learn(number, TypeName::from(name.clone())) {
                return Err(misconfigured(format!(
                    "the table `job_type` has the job type `{name}` under the number {number}, and its number is {}: \
                     something other than this library has written the row; correct the number there, and in the rows of \
                     its jobs if they have the wrong one too",
                    derived(&name)
                )));
            }
        }
        Ok(())
    }
}

/// The names of the types of many rows: most are the same as in the row before.
pub(crate) struct TypeNames<'a> {
    store: &'a Store,
    known: HashMap<i32, TypeName>,
}

impl<'a> TypeNames<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self {
            store,
            known: HashMap::new(),
        }
    }

    /// The name of a type for which [`name_types`](Store::name_types) or [`intern`](Store::intern) was called; `None` if the
    /// database has no type with this number.
    pub(crate) fn of(&mut self, number: i32) -> Option<TypeName> {
        if let Some(name) = self.known.get(&number) {
            return Some(name.clone());
        }
        let name = self.store.type_ids.name(number)?;
        self.known.insert(number, name.clone());
        Some(name)
    }
}

/// A name for a type that the database does not have. No type has such a name by mistake.
pub(crate) fn nameless(number: i32) -> TypeName {
    TypeName::from(format!("unknown type {number}"))
}

impl Store {
    /// The number of a type. A caller that writes it has called [`intern`](Self::intern), and lets the statement check it.
    pub(crate) fn type_id(&self, name: &TypeName) -> i32 {
        // Most have been seen, and a look at what was seen costs less than the hash.
        self.type_ids.number(name).unwrap_or_else(|| derived(name.as_str()))
    }

    /// The types with their numbers, for a statement to check.
    pub(crate) fn expected<'a>(&self, names: impl IntoIterator<Item = &'a TypeName>) -> Expected {
        let mut expected = Expected::default();
        if Bug::Types.is_on() {
            return expected;
        }
        let (mut seen, mut last) = (HashSet::new(), None);
        for name in names {
            // Most are the same as the one before.
            if last.replace(name) != Some(name) && seen.insert(name) {
                expected.numbers.push(self.type_id(name));
                expected.names.push(name.to_string());
            }
        }
        expected
    }

    /// Adds these types to the database, unless it has them.
    pub(crate) async fn intern(
        &self,
        session: &mut Session<'_>,
        names: impl IntoIterator<Item = &TypeName>,
    ) -> Result<(), StateError> {
        let missing = self.find_types(session, names).await?;
        self.intern_elsewhere(missing).await
    }

    /// The same after a statement has found that the database does not have types that this process knows.
    pub(crate) async fn intern_again(&self, lost: Expected) -> Result<(), StateError> {
        self.intern_elsewhere(lost.names).await
    }

    /// Adds types on another connection, committed at once: other processes must not wait for the caller's transaction
    /// because of a name, what the caller rolls back must not be remembered, and the caller's snapshot may be too old to
    /// see what is there. It does not wait for the pool, of which the caller may hold the last connection.
    async fn intern_elsewhere(&self, names: Vec<String>) -> Result<(), StateError> {
        if names.is_empty() {
            return Ok(());
        }
        // Boxed: it is rare, and every start and every end would carry it.
        let interned = Box::pin(async move {
            match self.pool.try_acquire() {
                Some(mut connection) => self.add_types(&mut connection, names).await,
                None => {
                    let patience = self.pool.options().get_acquire_timeout();
                    let mut connection = open_beside(&self.pool.connect_options(), false, patience)
                        .await
                        .map_err(translate)?;
                    self.add_types(&mut connection, names).await?;
                    connection.close().await.map_err(translate)
                }
            }
        });
        interned.await
    }

    /// The same for [unknown](TypeIds::unknown) ones, before a verb that runs by itself begins: with no connection beside
    /// the one that it will have. For verbs of the workers.
    pub(crate) async fn intern_alone(&self, access: &Access, unknown: Vec<TypeName>) -> Result<(), StateError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let missing = self.look_up_alone(Work::statement(access).await?, &unknown).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut connection = access.budget.for_worker().await.map_err(translate)?;
        self.add_types(&mut connection, missing).await?;
        connection.release();
        Ok(())
    }

    /// The same for verbs of the client. Its caller may keep the future and not poll it, so it takes no permit of the workers
    /// but the one that a call of the client may have.
    pub(crate) async fn intern_for_client(&self, access: &Access, unknown: Vec<TypeName>) -> Result<(), StateError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let missing = self
            .look_up_alone(Work::statement_for_client(access).await?, &unknown)
            .await?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut connection = access.budget.for_client().await.map_err(translate)?;
        self.add_types(&mut connection, missing).await?;
        connection.release();
        Ok(())
    }

    /// Looks for types on a connection of its own, and returns those that do not exist.
    async fn look_up_alone(&self, mut work: Work, names: &[TypeName]) -> Result<Vec<String>, StateError> {
        let missing = self.look_up(&mut work.session(), in_order(names.iter())).await?;
        work.commit().await?;
        Ok(missing)
    }

    /// For a transaction that is about to write jobs of these types: the database has them then.
    pub(crate) async fn check_types<'a>(
        &self,
        session: &mut Session<'_>,
        names: impl Iterator<Item = &'a TypeName>,
    ) -> Result<(), StateError> {
        let expected = self.expected(names);
        let check = expected.bind(query(self.sql.types_exist.when(session.guarded)));
        let rows = session.fetch(check).await?;
        let found = rows
            .first()
            .ok_or_else(|| corrupt("the check of types has no answer"))?;
        if row::get::<bool>(found, "exist")? {
            return Ok(());
        }
        self.intern_again(expected).await
    }

    /// Reads the table again for all types that this process knows, and adds the types that the database has lost.
    pub(crate) async fn refresh_types(&self, access: &Access) -> Result<(), StateError> {
        if Bug::Types.is_on() {
            return Ok(());
        }
        self.intern_alone(access, self.type_ids.names()).await
    }

    /// Looks for types that are not known yet, and returns the ones that do not exist.
    pub(crate) async fn find_types(
        &self,
        session: &mut Session<'_>,
        names: impl IntoIterator<Item = &TypeName>,
    ) -> Result<Vec<String>, StateError> {
        let unknown = |name: &&TypeName| self.type_ids.number(name).is_none();
        self.look_up(session, in_order(names.into_iter().filter(unknown))).await
    }

    /// Looks for types, and returns the ones that do not exist.
    async fn look_up(&self, session: &mut Session<'_>, mut names: Vec<String>) -> Result<Vec<String>, StateError> {
        if names.is_empty() {
            return Ok(names);
        }
        let found = session
            .fetch(query(&self.sql.types_by_name).bind(names.clone()))
            .await?;
        self.type_ids.learn_wanted(&found)?;
        let mut exist = HashSet::with_capacity(found.len());
        for found in &found {
            exist.insert(row::get::<String>(found, "name")?);
        }
        names.retain(|name| !exist.contains(name));
        Ok(names)
    }

    /// The numbers of all types that jobs have, in order: those of the table, and the ones that only damaged rows have.
    pub(crate) async fn all_types(&self, session: &mut Session<'_>) -> Result<Vec<i32>, StateError> {
        let found = session.fetch(query(&self.sql.all_types)).await?;
        let mut numbers = Vec::with_capacity(found.len());
        let mut known = Vec::with_capacity(found.len());
        for found in found {
            numbers.push(row::get(&found, "id")?);
            if row::get::<Option<&str>>(&found, "name")?.is_some() {
                known.push(found);
            }
        }
        self.type_ids.learn(&known)?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Adds types, and learns their numbers. The server gets everything in one message, and commits before it waits for the
    /// next one: another process that adds the same type waits for the server only, whatever becomes of this process or of
    /// the future.
    async fn add_types(&self, connection: &mut PgConnection, names: Vec<String>) -> Result<(), StateError> {
        let text = self.schema.complete(&insertion(&names));
        let rows = sqlx::raw_sql(text).fetch_all(connection).await.map_err(translate)?;
        let (mut found, mut holders) = (Vec::new(), HashMap::new());
        for row in rows {
            let name: String = row::get(&row, "name")?;
            if names.contains(&name) {
                found.push(row);
            } else {
                holders.insert(row::get::<i32>(&row, "id")?, name);
            }
        }
        // Two names with one number: about one chance in four thousand million for two types, 0.012 % for a thousand types, and
        // 1.2 % for ten thousand.
        if found.len() < names.len() {
            for name in &names {
                let number = derived(name);
                if let Some(holder) = holders.get(&number) {
                    return Err(misconfigured(format!(
                        "the job types `{name}` and `{holder}` have the same number in the database, {number}; rename one \
                         of them"
                    )));
                }
            }
        }
        self.type_ids.learn_wanted(&found)
    }

    /// Learns the names of these numbers, as far as the database has them.
    pub(crate) async fn name_types(
        &self,
        session: &mut Session<'_>,
        numbers: impl IntoIterator<Item = i32>,
    ) -> Result<(), StateError> {
        let unknown = |number: &i32| self.type_ids.name(*number).is_none();
        let mut numbers: Vec<i32> = numbers.into_iter().filter(unknown).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        numbers.sort_unstable();
        numbers.dedup();
        let found = session.fetch(query(&self.sql.types_by_number).bind(numbers)).await?;
        self.type_ids.learn(&found)
    }
}

/// The message that adds types, and returns the rows that have their names or their numbers.
fn insertion(names: &[String]) -> String {
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_unstable();
    let row = |name: &String| {
        // In hexadecimal: there is nothing to escape.
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("({}, convert_from(decode('{hex}', 'hex'), 'UTF8'))", derived(name))
    };
    let rows: Vec<String> = names.into_iter().map(row).collect();
    fill(text::ADD_TYPES, &Filling::none().with("rows", rows.join(", ")))
}

/// The names, each once, in order.
fn in_order<'a>(names: impl Iterator<Item = &'a TypeName>) -> Vec<String> {
    let mut names: Vec<String> = names.map(TypeName::to_string).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_name_is_the_same_for_ever() {
        // They are stored: whatever these say now they must say in every version.
        assert_eq!(derived("mail"), 14_210_033);
        assert_eq!(derived(""), -474_954_686);
    }

    #[test]
    fn a_row_with_another_number_than_that_of_its_name_is_not_believed() {
        let mut known = Known::default();
        assert!(known.learn(derived("mail"), "mail".into()));
        assert!(!known.learn(1, "mail".into()));
        assert!(!known.learn(1, "refund".into()));
        assert!(!known.learn(derived("mail"), "refund".into()));
        assert_eq!(known.numbers, HashMap::from([("mail".into(), derived("mail"))]));
        assert_eq!(known.names, HashMap::from([(derived("mail"), "mail".into())]));
    }
}
