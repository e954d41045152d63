//! Postgres for [queuert](https://docs.rs/queuert): durable, typed job chains in your own database, for as many worker
//! machines as you have.
//!
//! ```no_run
//! use queuert::{Client, JobTypes};
//! use queuert_postgres::{Attempt, PostgresNotify, PostgresState};
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
//! let state = PostgresState::connect("postgres://app:password@db.internal:5432/app").await?;
//! let notify = PostgresNotify::new(&state);
//! let client = Client::builder(state).notify(notify).build();
//! let workers = client
//!     .worker()
//!     .process(|job: Attempt<Greet>| async move {
//!         let greeting = format!("hello {}", job.name);
//!         job.finish(greeting)
//!     })
//!     .start()
//!     .await?;
//!
//! // Your own tables live in the same database and join the same transactions.
//! let mut tx = client.begin().await?;
//! sqlx::query("INSERT INTO person VALUES ('Ada')").execute(&mut *tx).await?;
//! let chain = client.start(Greet { name: "Ada".into() }).within(&mut tx).await?;
//! tx.commit().await?;
//!
//! assert_eq!(client.wait(&chain).await?, "hello Ada");
//! workers.stop().await;
//! # Ok(()) }
//! ```
//!
//! # Schema
//!
//! Everything is in a schema of its own, `queuert` unless [`PostgresOptions::schema`] says otherwise, with a ledger of
//! its own. It is created and brought up to date by whoever connects first; any number of processes may start at once.
//! [`PostgresState::migrations`] gives it as plain SQL to those who apply it themselves.
//!
//! # Connections
//!
//! [`PostgresState::connect`] has a pool of its own, whose connections keep prepared statements and planner settings;
//! transactions that you open on them have the usual settings. [`PostgresState::from_pool`] uses yours and keeps nothing
//! on it. Both work through a pooler in transaction mode. For encrypted connections enable one of the `tls-*` features
//! of sqlx 0.9 in your own manifest.
//!
//! # Isolation
//!
//! Made for `READ COMMITTED`. In a transaction of yours that is stricter, a collision is a
//! [`Conflict`](queuert::StateErrorKind::Conflict): run it again.

mod careful;
mod change;
mod claim;
mod claim_statement;
mod connect;
mod core;
mod create;
mod error;
mod finish;
mod hidden;
mod horizon;
mod kept;
mod keys;
mod lanes;
mod lanes_local;
mod lately;
mod lease;
mod lifeline;
mod lock;
mod lock_set;
mod locked_jobs;
mod lost_jobs;
mod maintain;
mod maintain_check;
mod maintain_retention;
mod maintain_vacuum;
mod migrate;
mod migrate_apply;
mod notify;
mod notify_backoff;
mod notify_fleet;
mod notify_hub;
mod notify_listener;
mod notify_look;
mod notify_outbox;
mod notify_payload;
mod operate;
mod operate_delete;
mod options;
mod presence;
mod presence_others;
mod query;
mod query_chains;
mod query_jobs;
mod query_page;
mod recall;
mod reserve;
mod retention;
mod row;
mod sabotage;
mod session;
mod settle;
mod settle_batch;
mod settle_statement;
mod snapshot;
mod sql;
mod starts;
mod state;
mod together;
mod transaction;
mod types;
mod url;
mod watermark;

pub use migrate::Migration;
pub use notify::{PostgresNotify, PostgresNotifyOptions};
pub use options::PostgresOptions;
pub use retention::Retention;
pub use state::PostgresState;
pub use transaction::PostgresTransaction;

/// [`Attempt`](queuert::Attempt) on this store.
pub type Attempt<J> = queuert::Attempt<J, PostgresState>;

/// [`JobResult`](queuert::JobResult) on this store.
pub type JobResult = queuert::JobResult<PostgresState>;

/// [`Client`](queuert::Client) on this store.
pub type Client = queuert::Client<PostgresState>;

/// [`Transaction`](queuert::Transaction) on this store.
pub type Transaction = queuert::Transaction<PostgresState>;
