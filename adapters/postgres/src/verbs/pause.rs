//! The pauses of job types.

use queuert::adapter::Pauses;
use queuert::{Pause, StateError, Timestamp, TypeName};

use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::row;
use crate::store::Store;

pub(crate) async fn list(session: &mut Session<'_>, store: &Store) -> Result<Pauses, StateError> {
    let rows = session.fetch(query(&store.sql.pauses)).await?;
    let first = rows.first().ok_or_else(|| corrupt("the time has no answer"))?;
    let now = Timestamp::from_micros(row::get(first, "now")?);
    let mut pauses = Vec::new();
    for found in &rows {
        let Some(type_name) = row::get::<Option<String>>(found, "type_name")? else {
            continue;
        };
        let mut pause = Pause::new(type_name, Timestamp::from_micros(row::get(found, "since")?));
        pause.until = row::get::<Option<i64>>(found, "until")?.map(Timestamp::from_micros);
        pause.reason = row::get(found, "reason")?;
        pause.author = row::get(found, "author")?;
        pauses.push(pause);
    }
    Ok(Pauses::new(now, pauses))
}

pub(crate) async fn put(session: &mut Session<'_>, store: &Store, pause: &Pause) -> Result<(), StateError> {
    let put = query(&store.sql.put_pause)
        .bind(pause.type_name.as_str().to_owned())
        .bind(pause.since.as_micros())
        .bind(pause.until.map(Timestamp::as_micros))
        .bind(pause.reason.clone())
        .bind(pause.author.clone());
    session.execute(put).await
}

pub(crate) async fn delete(session: &mut Session<'_>, store: &Store, type_name: &TypeName) -> Result<bool, StateError> {
    let delete = query(&store.sql.delete_pause).bind(type_name.as_str().to_owned());
    Ok(!session.fetch(delete).await?.is_empty())
}
