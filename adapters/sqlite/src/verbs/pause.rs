//! The pauses of job types.

use queuert::adapter::{Notice, Pauses};
use queuert::{Pause, StateError, Timestamp, TypeName};

use crate::clock;
use crate::connection::{Connection, query};
use crate::notify::notices;
use crate::store::Store;

pub(crate) async fn list(connection: &mut Connection<'_>, store: &Store) -> Result<Pauses, StateError> {
    let pauses = connection.fetch(query(&store.statements.pauses), |found| {
        let since = Timestamp::from_micros(found.get("since")?);
        let mut pause = Pause::new(found.get::<String>("type")?, since);
        pause.until = found.get::<Option<i64>>("until")?.map(Timestamp::from_micros);
        pause.reason = found.get("reason")?;
        pause.author = found.get("author")?;
        Ok(pause)
    });
    Ok(Pauses::new(clock::now(), pauses.await?))
}

pub(crate) async fn put(connection: &mut Connection<'_>, store: &Store, pause: &Pause) -> Result<(), StateError> {
    let put = query(&store.statements.put_pause)
        .bind(pause.type_name.as_str())
        .bind(pause.since.as_micros())
        .bind(pause.until.map(Timestamp::as_micros))
        .bind(pause.reason.clone())
        .bind(pause.author.clone());
    connection.execute(put).await?;
    tell_others(connection, store).await
}

pub(crate) async fn delete(
    connection: &mut Connection<'_>,
    store: &Store,
    type_name: &TypeName,
) -> Result<bool, StateError> {
    let delete = query(&store.statements.delete_pause).bind(type_name.as_str());
    let deleted: Vec<()> = connection.fetch(delete, |_| Ok(())).await?;
    tell_others(connection, store).await?;
    Ok(!deleted.is_empty())
}

/// The processes that watch the file cannot see a pause in the indexes of jobs.
async fn tell_others(connection: &mut Connection<'_>, store: &Store) -> Result<(), StateError> {
    notices::insert(connection, store, [&Notice::PausesChanged]).await
}
