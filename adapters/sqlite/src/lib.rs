//! SQLite for [queuert](https://docs.rs/queuert): durable, typed job chains in one file, with nothing to install or run.
//!
//! ```
//! use queuert::{Client, JobTypes};
//! use queuert_sqlite::{Attempt, SqliteState};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greet { name: String }
//!
//! #[derive(JobTypes)]
//! enum Jobs {
//!     #[job(entry, output = String)]
//!     Greet(Greet),
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("app.db");
//! let client = Client::new(SqliteState::open(path).await?);
//! let workers = client
//!     .worker()
//!     .process(|job: Attempt<Greet>| async move {
//!         let greeting = format!("hello {}", job.name);
//!         job.finish(greeting)
//!     })
//!     .start()
//!     .await?;
//!
//! // Your own tables live in the same file and join the same transactions.
//! let mut tx = client.begin().await?;
//! sqlx::query("CREATE TABLE person (name TEXT)").execute(&mut *tx).await?;
//! sqlx::query("INSERT INTO person VALUES ('Ada')").execute(&mut *tx).await?;
//! let chain = client.start(Greet { name: "Ada".into() }).within(&mut tx).await?;
//! tx.commit().await?;
//!
//! assert_eq!(client.wait(&chain).await?, "hello Ada");
//! workers.stop().await;
//! # Ok(()) }
//! ```
//!
//! # One writer
//!
//! SQLite has one writer at a time. [`SqliteState`] keeps a fair queue for it: operations that wait at the same time share one
//! transaction and one flush to disk. A transaction of yours takes its turn in the same queue and has the write lock
//! until it ends, so keep it short, and run the calls that belong to it with `.within(&mut tx)`: a call without it waits for
//! the end of the transaction, and fails after [`SqliteOptions::lock_timeout`]. Reads have their own connections and do not
//! wait for writers.
//!
//! The file is switched to write-ahead logging, which needs a local file system. Transactions that you open on
//! connections of your own and pass to [`Client::adopt`](queuert::Client::adopt) must be begun with sqlx's
//! `begin_with("BEGIN IMMEDIATE")`.
//!
//! # Several processes
//!
//! Any number of processes of one machine may open one file. A call waits for the locks of other processes. [`SqliteNotify`]
//! wakes workers across processes within some 25 ms.
//!
//! # Time
//!
//! The machine's clock is the store's clock: all processes on a file share it.
//!
//! # Durability
//!
//! A commit survives a power failure unless [`Synchronous::Normal`] is chosen.
//!
//! # Size
//!
//! [`SqliteState::delete_finished`] and [`SqliteState::incremental_vacuum`] keep the file small.

mod clock;
mod connection;
mod error;
mod liveness;
mod locks;
mod migrate;
mod notify;
mod options;
mod row;
mod runtime_thread;
mod sabotage;
mod state;
mod statements;
mod store;
mod transaction;
mod upkeep;
mod verbs;
mod writer;

pub use migrate::Migration;
pub use notify::SqliteNotify;
pub use options::{SqliteOptions, Synchronous};
pub use state::SqliteState;
pub use transaction::SqliteTransaction;

/// [`Attempt`](queuert::Attempt) on this store.
pub type Attempt<J> = queuert::Attempt<J, SqliteState>;

/// [`JobResult`](queuert::JobResult) on this store.
pub type JobResult = queuert::JobResult<SqliteState>;

/// [`Client`](queuert::Client) on this store.
pub type Client = queuert::Client<SqliteState>;

/// [`Transaction`](queuert::Transaction) on this store.
pub type Transaction = queuert::Transaction<SqliteState>;
