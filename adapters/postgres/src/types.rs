//! Type names as small numbers, remembered by every process.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use queuert::{StateError, TypeName};
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection};

use crate::connect::Access;
use crate::core::Core;
use crate::error::{corrupt, translate};
use crate::row;
use crate::session::{Session, query};
use crate::transaction::Work;

/// What this process has seen of the table of types, which only ever grows.
#[derive(Debug, Default)]
pub(crate) struct Types(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    numbers: HashMap<TypeName, i32>,
    names: HashMap<i32, TypeName>,
}

impl Types {
    /// The number of a type that has been seen.
    pub(crate) fn number(&self, name: &TypeName) -> Option<i32> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.numbers.get(name).copied()
    }

    /// Those that have not been seen.
    pub(crate) fn unknown<'a>(&self, names: impl Iterator<Item = &'a TypeName>) -> Vec<TypeName> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names
            .filter(|name| !known.numbers.contains_key(*name))
            .cloned()
            .collect()
    }

    /// The name of a type that has been seen.
    pub(crate) fn name(&self, number: i32) -> Option<TypeName> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.names.get(&number).cloned()
    }

    /// The numbers of all types that have been seen, in order.
    fn numbers(&self) -> Vec<i32> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut numbers: Vec<i32> = known.names.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    fn learn(&self, rows: &[PgRow]) -> Result<(), StateError> {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for found in rows {
            let number: i32 = row::get(found, 0)?;
            let name = TypeName::from(row::get::<String>(found, 1)?);
            known.numbers.insert(name.clone(), number);
            known.names.insert(number, name);
        }
        Ok(())
    }
}

/// The names of the types of many rows: they are few, and most are the same as in the row before.
pub(crate) struct Names<'a> {
    core: &'a Core,
    known: Vec<(i32, TypeName)>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(core: &'a Core) -> Self {
        Self {
            core,
            known: Vec::new(),
        }
    }

    /// The name of a type for which [`name_types`](Core::name_types) or [`intern`](Core::intern) was called.
    pub(crate) fn of(&mut self, number: i32) -> Result<TypeName, StateError> {
        if let Some((_, name)) = self.known.iter().find(|(known, _)| *known == number) {
            return Ok(name.clone());
        }
        let name = self.core.types.name(number);
        let name = name.ok_or_else(|| corrupt(format!("there is no job type with the number {number}")))?;
        self.known.push((number, name.clone()));
        Ok(name)
    }
}

impl Core {
    /// The number of a type for which [`intern`](Self::intern) or [`find_types`](Self::find_types) was called.
    pub(crate) fn type_number(&self, name: &TypeName) -> Result<i32, StateError> {
        self.types
            .number(name)
            .ok_or_else(|| corrupt(format!("the type `{name}` has no number")))
    }

    /// Sees to it that these types have numbers.
    pub(crate) async fn intern(
        &self,
        session: &mut Session<'_>,
        names: impl IntoIterator<Item = &TypeName>,
    ) -> Result<(), StateError> {
        let missing = self.find_types(session, names).await?;
        if missing.is_empty() {
            return Ok(());
        }
        // On another connection, committed at once: others must not wait for the caller's transaction because of a
        // name, and what it rolls back must not be remembered. Not waiting for the pool, of which the caller may hold
        // the last connection.
        match self.pool.try_acquire() {
            Some(mut connection) => self.add_types(&mut connection, missing).await,
            None => {
                let mut connection = PgConnection::connect_with(&self.pool.connect_options())
                    .await
                    .map_err(translate)?;
                self.add_types(&mut connection, missing).await?;
                connection.close().await.map_err(translate)
            }
        }
    }

    /// The same for [unknown](Types::unknown) ones, before a verb that runs by itself begins: with no connection beside
    /// the one that it will have.
    pub(crate) async fn intern_alone(&self, access: &Access, unknown: Vec<TypeName>) -> Result<(), StateError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let mut work = Work::single(access).await?;
        let missing = self.find_types(&mut work.session(), &unknown).await?;
        work.finish().await?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut work = Work::atomic(access).await?;
        let found = self.insert_types(&mut work.session(), missing).await?;
        work.finish().await?;
        self.types.learn(&found)
    }

    /// Looks for types that are not known yet, and returns those that do not exist.
    pub(crate) async fn find_types(
        &self,
        session: &mut Session<'_>,
        names: impl IntoIterator<Item = &TypeName>,
    ) -> Result<Vec<String>, StateError> {
        let unknown = |name: &&TypeName| self.types.number(name).is_none();
        let mut names: Vec<_> = names.into_iter().filter(unknown).map(TypeName::to_string).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(names);
        }
        let found = session
            .fetch(query(&self.sql.types_by_name).bind(names.clone()))
            .await?;
        self.types.learn(&found)?;
        names.retain(|name| self.types.number(&TypeName::from(name.clone())).is_none());
        Ok(names)
    }

    /// The numbers of all types, in order.
    pub(crate) async fn all_types(&self, session: &mut Session<'_>) -> Result<Vec<i32>, StateError> {
        let found = session
            .fetch(query(&self.render("SELECT id, name FROM {schema}.job_type")))
            .await?;
        self.types.learn(&found)?;
        Ok(self.types.numbers())
    }

    async fn add_types(&self, connection: &mut PgConnection, names: Vec<String>) -> Result<(), StateError> {
        let mut transaction = connection.begin().await.map_err(translate)?;
        let found = self
            .insert_types(&mut Session::own(&mut transaction, false), names)
            .await?;
        transaction.commit().await.map_err(translate)?;
        self.types.learn(&found)
    }

    /// What it returns is true when the transaction has committed.
    async fn insert_types(&self, session: &mut Session<'_>, names: Vec<String>) -> Result<Vec<PgRow>, StateError> {
        session
            .execute(query(&self.sql.insert_types).bind(names.clone()))
            .await?;
        session.fetch(query(&self.sql.types_by_name).bind(names)).await
    }

    /// Sees to it that the names of these numbers are known.
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
