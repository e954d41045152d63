//! A staged processor: a short transaction before the slow part, none during it, and one at the end. The slow part is a
//! call to another service over HTTP. Such effects cannot be rolled back, so they happen at least once: the job's id is
//! the idempotency key that lets the other side recognise a repetition.
//!
//! The bank is a real server on the loopback interface. It charges the card, and then its first answer gets lost.
//!
//! `cargo run -p patterns --bin staged` prints:
//!
//! ```text
//!   attempt 1: the order is marked as charging
//!     the bank is asked for 4200: charged, but the answer gets lost
//!   attempt 2: the order is marked as charging
//!     the bank is asked for 4200: it knows the key, and answers as before
//!   attempt 2: the order is marked as paid
//! The chain ended with receipt R-1.
//! The order is paid, the bank has 1 charge.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, StatusCode};
use axum::{Json, Router, extract::State, routing::post};
use queuert::JobTypes;
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Charge {
    order: i64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Receipt {
    number: String,
}

#[derive(JobTypes)]
enum Payments {
    #[job(entry, output = Receipt, timeout = "30s", retry(initial = "20ms"))]
    Charge(Charge),
}

/// The address of the bank. `process_with` gives it to the processor.
#[derive(Clone)]
struct Bank {
    http: reqwest::Client,
    url: String,
}

async fn charge(job: Attempt<Charge>, bank: Bank) -> JobResult {
    // First stage: a short transaction that is committed at once.
    let cents: i64 = job
        .prepare(async |tx| {
            sqlx::query_scalar("UPDATE orders SET state = 'charging' WHERE id = ? RETURNING cents")
                .bind(job.order)
                .fetch_one(&mut **tx)
                .await
        })
        .await?;
    println!("  attempt {}: the order is marked as charging", job.number());

    // Second stage: no transaction is open, and no connection is held. The lease is renewed for as long as it takes.
    let request = bank.http.post(&bank.url).json(&cents);
    let request = request.header("idempotency-key", job.id().to_string());
    let receipt: Receipt = request.send().await?.error_for_status()?.json().await?;

    // Third stage: the receipt and the completion of the job are committed together.
    let mut tx = job.begin().await?;
    sqlx::query("UPDATE orders SET state = 'paid', receipt = ? WHERE id = ?")
        .bind(&receipt.number)
        .bind(job.order)
        .execute(&mut *tx)
        .await?;
    println!("  attempt {}: the order is marked as paid", job.number());
    tx.finish(receipt).await
}

/// The bank's side: charges by idempotency key.
type Charges = Arc<Mutex<HashMap<String, Receipt>>>;

async fn charge_card(
    State(charges): State<Charges>,
    headers: HeaderMap,
    Json(cents): Json<u64>,
) -> Result<Json<Receipt>, StatusCode> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let key = key.ok_or(StatusCode::BAD_REQUEST)?.to_owned();
    let mut charges = charges.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(receipt) = charges.get(&key) {
        println!("    the bank is asked for {cents}: it knows the key, and answers as before");
        return Ok(Json(receipt.clone()));
    }
    println!("    the bank is asked for {cents}: charged, but the answer gets lost");
    let number = format!("R-{}", charges.len() + 1);
    charges.insert(key, Receipt { number });
    Err(StatusCode::GATEWAY_TIMEOUT)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let charges = Charges::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let bank = Bank {
        http: reqwest::Client::new(),
        url: format!("http://{}/charges", listener.local_addr()?),
    };
    let routes = Router::new()
        .route("/charges", post(charge_card))
        .with_state(Arc::clone(&charges));
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let client = Client::new(SqliteState::open(":memory:").await?);
    let mut tx = client.begin().await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, cents INTEGER, state TEXT, receipt TEXT)")
        .execute(&mut *tx)
        .await?;
    let order = sqlx::query_scalar("INSERT INTO orders (cents, state) VALUES (4200, 'new') RETURNING id")
        .fetch_one(&mut *tx)
        .await?;
    let chain = client.start(Charge { order }).within(&mut tx).await?;
    tx.commit().await?;

    let workers = client.worker().process_with(bank, charge).start().await?;
    println!("The chain ended with receipt {}.", client.wait(&chain).await?.number);
    workers.stop().await;

    let mut tx = client.begin().await?;
    let state: String = sqlx::query_scalar("SELECT state FROM orders")
        .fetch_one(&mut *tx)
        .await?;
    let count = charges.lock().unwrap_or_else(PoisonError::into_inner).len();
    println!("The order is {state}, the bank has {count} charge.");
    Ok(())
}
