//! The numbers under which type names are stored.
//!
//! A number is derived from the name, so it means the same type in every process and in every copy of the database. A copy
//! that has lost the row of a name (a replica that lagged behind and was promoted, an older backup, a schema that was made
//! anew) gives the name the same number again, and never gives that number to another name. Every statement that writes
//! numbers checks that the database at hand has them, under these names: see [`KNOWN`]. A row of the table that has another
//! number than that of its name was not written by this library: nothing is read or claimed by it.

use std::collections::{HashMap, HashSet};

use queuert::__task::SharedLock;
use queuert::{StateError, TypeName};
use sha2::{Digest, Sha256};
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection};

use crate::connect::Access;
use crate::core::Core;
use crate::error::{corrupt, misconfigured, translate};
use crate::reserve::open_beside;
use crate::row;
use crate::sabotage::Bug;
use crate::session::{Query, Session, query};
use crate::transaction::Work;

/// Whether the database has the types with the numbers in `{numbers}` and the names in `{names}`: two arrays, in the same
/// order. If they are empty there is nothing to check.
pub(crate) const KNOWN: &str = "NOT EXISTS (SELECT 1 FROM unnest({numbers}, {names}) AS w(id, name) \
     WHERE (SELECT t.name FROM {schema}.job_type AS t WHERE t.id = w.id) IS DISTINCT FROM w.name)";

/// The number of a name.
fn derived(name: &str) -> i32 {
    let digest = Sha256::digest(name.as_bytes());
    i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// Types with their numbers, each once, as a statement checks them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) numbers: Vec<i32>,
    pub(crate) names: Vec<String>,
}

impl Expected {
    /// Binds them as the two arrays of [`KNOWN`].
    pub(crate) fn bind(&self, query: Query) -> Query {
        query.bind(self.numbers.clone()).bind(self.names.clone())
    }
}

/// What this process has seen of the table of types.
#[derive(Debug, Default)]
pub(crate) struct Types(SharedLock<Known>);

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

impl Types {
    /// The number of a type that has been seen.
    pub(crate) fn number(&self, name: &TypeName) -> Option<i32> {
        let known = self.0.read();
        known.numbers.get(name).copied()
    }

    /// Those that have not been seen.
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

    /// Remembers rows of the table. Those with another number than that of their name are left out.
    fn learn(&self, rows: &[PgRow]) -> Result<(), StateError> {
        let mut known = self.0.write();
        for found in rows {
            known.learn(row::get(found, 0)?, TypeName::from(row::get::<String>(found, 1)?));
        }
        Ok(())
    }

    /// The same for rows that were looked for by name. It is an error if one has another number than that of its name.
    fn learn_wanted(&self, rows: &[PgRow]) -> Result<(), StateError> {
        let mut known = self.0.write();
        for found in rows {
            let (number, name): (i32, String) = (row::get(found, 0)?, row::get(found, 1)?);
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
pub(crate) struct Names<'a> {
    core: &'a Core,
    known: HashMap<i32, TypeName>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(core: &'a Core) -> Self {
        Self {
            core,
            known: HashMap::new(),
        }
    }

    /// The name of a type for which [`name_types`](Core::name_types) or [`intern`](Core::intern) was called; `None` if the
    /// database has no type with this number.
    pub(crate) fn of(&mut self, number: i32) -> Option<TypeName> {
        if let Some(name) = self.known.get(&number) {
            return Some(name.clone());
        }
        let name = self.core.types.name(number)?;
        self.known.insert(number, name.clone());
        Some(name)
    }
}

/// What stands in place of the name of a type that the database does not have. No type has such a name by mistake.
pub(crate) fn nameless(number: i32) -> TypeName {
    TypeName::from(format!("unknown type {number}"))
}

impl Core {
    /// The number of a type. Whoever writes it has called [`intern`](Self::intern), and checks it with [`KNOWN`].
    pub(crate) fn type_number(&self, name: &TypeName) -> i32 {
        // Most have been seen, and a look at what was seen costs less than the hash.
        self.types.number(name).unwrap_or_else(|| derived(name.as_str()))
    }

    /// The types with their numbers, for a statement to check; see [`KNOWN`].
    pub(crate) fn expected<'a>(&self, names: impl IntoIterator<Item = &'a TypeName>) -> Expected {
        let mut expected = Expected::default();
        if Bug::Types.is_on() {
            return expected;
        }
        let (mut seen, mut last) = (HashSet::new(), None);
        for name in names {
            // Most are the same as the one before.
            if last.replace(name) != Some(name) && seen.insert(name) {
                expected.numbers.push(self.type_number(name));
                expected.names.push(name.to_string());
            }
        }
        expected
    }

    /// Sees to it that these types have numbers.
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

    /// The same for [unknown](Types::unknown) ones, before a verb that runs by itself begins: with no connection beside
    /// the one that it will have. For verbs of the workers.
    pub(crate) async fn intern_alone(&self, access: &Access, unknown: Vec<TypeName>) -> Result<(), StateError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let missing = self.look_up_alone(Work::single(access).await?, &unknown).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut lent = access.lanes.enter().await.map_err(translate)?;
        self.add_types(&mut lent, missing).await?;
        lent.leave();
        Ok(())
    }

    /// The same for what the client was asked for. Its caller may keep the future and not poll it, so it takes no place of
    /// the workers' but the one that a call of the client's may have.
    pub(crate) async fn intern_for_client(&self, access: &Access, unknown: Vec<TypeName>) -> Result<(), StateError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let missing = self
            .look_up_alone(Work::single_for_client(access).await?, &unknown)
            .await?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut lent = access.lanes.visit().await.map_err(translate)?;
        self.add_types(&mut lent, missing).await?;
        lent.leave();
        Ok(())
    }

    /// Looks for types on a connection of its own, and returns those that do not exist.
    async fn look_up_alone(&self, mut work: Work, names: &[TypeName]) -> Result<Vec<String>, StateError> {
        let missing = self.look_up(&mut work.session(), in_order(names.iter())).await?;
        work.finish().await?;
        Ok(missing)
    }

    /// For a transaction that is about to write jobs of these types: the database has them then.
    pub(crate) async fn check_types<'a>(
        &self,
        session: &mut Session<'_>,
        names: impl Iterator<Item = &'a TypeName>,
    ) -> Result<(), StateError> {
        let expected = self.expected(names);
        let text = if session.guarded {
            &self.sql.knows_types_within
        } else {
            &self.sql.knows_types
        };
        let rows = session.fetch(expected.bind(query(text))).await?;
        let found = rows
            .first()
            .ok_or_else(|| corrupt("the check of types has no answer"))?;
        match row::get::<bool>(found, 0)? {
            true => Ok(()),
            false => self.intern_again(expected).await,
        }
    }

    /// Looks at the table again for all types that this process knows, and adds those that the database has lost.
    pub(crate) async fn refresh_types(&self, access: &Access) -> Result<(), StateError> {
        if Bug::Types.is_on() {
            return Ok(());
        }
        self.intern_alone(access, self.types.names()).await
    }

    /// Looks for types that are not known yet, and returns those that do not exist.
    pub(crate) async fn find_types(
        &self,
        session: &mut Session<'_>,
        names: impl IntoIterator<Item = &TypeName>,
    ) -> Result<Vec<String>, StateError> {
        let unknown = |name: &&TypeName| self.types.number(name).is_none();
        self.look_up(session, in_order(names.into_iter().filter(unknown))).await
    }

    /// Looks for types, and returns those that do not exist.
    async fn look_up(&self, session: &mut Session<'_>, mut names: Vec<String>) -> Result<Vec<String>, StateError> {
        if names.is_empty() {
            return Ok(names);
        }
        let found = session
            .fetch(query(&self.sql.types_by_name).bind(names.clone()))
            .await?;
        self.types.learn_wanted(&found)?;
        let mut exist = HashSet::with_capacity(found.len());
        for found in &found {
            exist.insert(row::get::<String>(found, 1)?);
        }
        names.retain(|name| !exist.contains(name));
        Ok(names)
    }

    /// The numbers of all types that jobs have, in order: those of the table, and those that only damaged rows have.
    pub(crate) async fn all_types(&self, session: &mut Session<'_>) -> Result<Vec<i32>, StateError> {
        let found = session.fetch(query(&self.sql.all_types)).await?;
        let mut numbers = Vec::with_capacity(found.len());
        let mut known = Vec::with_capacity(found.len());
        for found in found {
            numbers.push(row::get(&found, 0)?);
            if row::get::<Option<&str>>(&found, 1)?.is_some() {
                known.push(found);
            }
        }
        self.types.learn(&known)?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Adds types, and learns their numbers. The server gets everything in one message, and commits before it waits for the
    /// next one: another process that adds the same type waits for the server only, whatever becomes of this process or of
    /// the future.
    async fn add_types(&self, connection: &mut PgConnection, names: Vec<String>) -> Result<(), StateError> {
        let text = self.complete(&insertion(&names));
        let rows = sqlx::raw_sql(text).fetch_all(connection).await.map_err(translate)?;
        let (mut found, mut holders) = (Vec::new(), HashMap::new());
        for row in rows {
            let name: String = row::get(&row, 1)?;
            if names.contains(&name) {
                found.push(row);
            } else {
                holders.insert(row::get::<i32>(&row, 0)?, name);
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
        self.types.learn_wanted(&found)
    }

    /// Sees to it that the names of these numbers are known, of those that the database has.
    pub(crate) async fn name_types(
        &self,
        session: &mut Session<'_>,
        numbers: impl IntoIterator<Item = i32>,
    ) -> Result<(), StateError> {
        let unknown = |number: &i32| self.types.name(*number).is_none();
        let mut numbers: Vec<i32> = numbers.into_iter().filter(unknown).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        numbers.sort_unstable();
        numbers.dedup();
        let found = session.fetch(query(&self.sql.types_by_number).bind(numbers)).await?;
        self.types.learn(&found)
    }
}

/// The message that adds types, and returns the rows that have their names or their numbers. In order of name, so that two
/// sessions that add the same types do not wait for each other in a circle. The statements of one message are one transaction,
/// which is READ COMMITTED whatever the session begins with otherwise: two processes that add a type at once must not conflict.
fn insertion(names: &[String]) -> String {
    let mut rows = Vec::with_capacity(names.len());
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_unstable();
    for name in names {
        // In hexadecimal: there is nothing to escape.
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        rows.push(format!(
            "({}, convert_from(decode('{hex}', 'hex'), 'UTF8'))",
            derived(name)
        ));
    }
    let rows = rows.join(", ");
    let (lock, number) = if Bug::Types.is_on() {
        // Numbers in order, one process at a time.
        (
            "LOCK TABLE {schema}.job_type IN EXCLUSIVE MODE; ",
            "(SELECT coalesce(max(id), 0) FROM {schema}.job_type) + (row_number() OVER (ORDER BY w.name))::integer",
        )
    } else {
        ("", "w.id")
    };
    format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {lock}INSERT INTO {{schema}}.job_type (id, name) \
         SELECT {number}, w.name FROM (VALUES {rows}) AS w(id, name) ORDER BY w.name ON CONFLICT DO NOTHING; \
         SELECT t.id, t.name FROM {{schema}}.job_type AS t WHERE EXISTS (\
         SELECT 1 FROM (VALUES {rows}) AS w(id, name) WHERE w.name = t.name OR w.id = t.id)"
    )
}

/// Each once, in order.
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
