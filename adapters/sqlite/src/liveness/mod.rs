//! Which of the processes that hold leases are alive.
//!
//! A handle that claims jobs creates a file beside the database, with a name that no other handle ever uses, and keeps it
//! locked ([`file_lock`]). The operating system releases the lock when the process ends, however it ends, and not before: not
//! while the process is stopped, busy or swapped out. A table says which workers belong to which file. So a process that
//! finds the file of another one unlocked knows that the workers of that process are gone.
//!
//! If that cannot be found out, leases decide: the file is missing because it was deleted by hand, the directory cannot be
//! written, or the file system has no locks.

mod file_lock;

use std::collections::HashSet;

use queuert::StateError;
use uuid::Uuid;

use crate::connection::{Connection, query};
use crate::statements::json_rows::JsonRows;
use crate::store::Store;

use file_lock::Registration;
pub(crate) use file_lock::{DeadProcesses, Liveness};

/// All processes with their workers, from the table.
pub(crate) async fn processes(
    connection: &mut Connection<'_>,
    store: &Store,
) -> Result<Vec<(Uuid, String)>, StateError> {
    connection
        .fetch(query(&store.statements.processes), |found| {
            Ok((found.get("key")?, found.get("worker")?))
        })
        .await
}

/// Notes in the transaction of a claim that the worker belongs to this handle, unless the table says so already.
pub(crate) async fn register(connection: &mut Connection<'_>, store: &Store, worker: &str) -> Result<(), StateError> {
    let Some(Registration { key, crowded }) = store.liveness.register(worker) else {
        return Ok(());
    };
    if crowded {
        delete_workers(connection, store, &[key]).await?;
    }
    let register = query(&store.statements.register_worker).bind(key).bind(worker);
    connection.execute(register).await?;
    Ok(())
}

/// The processes that have died. The transaction has the write lock, so no process is added meanwhile.
pub(crate) async fn dead_processes(
    connection: &mut Connection<'_>,
    store: &Store,
) -> Result<DeadProcesses, StateError> {
    if !store.liveness.is_possible() {
        return Ok(DeadProcesses::default());
    }
    let rows = processes(connection, store).await?;
    Ok(store.liveness.find_dead(&rows))
}

/// Deletes dead processes whose leases have all been taken back, and their files.
pub(crate) async fn remove_dead(
    connection: &mut Connection<'_>,
    store: &Store,
    dead: &DeadProcesses,
) -> Result<(), StateError> {
    if dead.keys.is_empty() {
        return Ok(());
    }
    delete_workers(connection, store, &dead.keys).await?;
    let left = processes(connection, store).await?;
    let left: HashSet<Uuid> = left.into_iter().map(|(key, _)| key).collect();
    for key in dead.keys.iter().filter(|key| !left.contains(key)) {
        // If the transaction fails, rows name files that are missing, and leases decide.
        store.liveness.remove_file(*key);
    }
    Ok(())
}

/// Deletes the workers of these processes from the table, except workers that have leases.
async fn delete_workers(connection: &mut Connection<'_>, store: &Store, keys: &[Uuid]) -> Result<(), StateError> {
    let keys = JsonRows::of_ids(keys.iter().copied());
    let delete = query(&store.statements.delete_workers).bind(keys);
    connection.execute(delete).await?;
    Ok(())
}

/// Deletes the workers of this handle from the table before the handle is closed, and its file if no worker is left.
pub(crate) async fn unregister(connection: &mut Connection<'_>, store: &Store) -> Result<(), StateError> {
    let Some(key) = store.liveness.key() else {
        return Ok(());
    };
    let own = DeadProcesses {
        keys: vec![key],
        ..DeadProcesses::default()
    };
    remove_dead(connection, store, &own).await
}
