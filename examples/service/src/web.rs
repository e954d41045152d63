//! The web form and the JSON API. Both place an order in the same way: the order and its chain are committed together,
//! then the handler waits for the chain for a while.

use std::time::Duration;

use axum::extract::{Form, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use queuert::{ChainId, ChainRef, Client, Error, JobStatus};
use serde::{Deserialize, Serialize};

use crate::jobs::{Outcome, TakePaper};
use crate::page;
use crate::store::{Order, Store};
use crate::trace::trace_request;

/// The state that the handlers share.
pub(crate) struct App<S: Store> {
    pub(crate) client: Client<S>,
    /// How long a request waits for its order.
    pub(crate) patience: Duration,
}

impl<S: Store> Clone for App<S> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            patience: self.patience,
        }
    }
}

pub(crate) fn routes<S: Store>(app: App<S>) -> Router {
    Router::new()
        .route("/", get(show_form::<S>))
        .route("/orders", post(order_by_form::<S>))
        .route("/orders/{id}", get(show_order::<S>))
        .route("/api/orders", post(order_by_api::<S>))
        .route("/api/orders/{id}", get(get_order::<S>))
        .layer(middleware::from_fn(trace_request))
        .with_state(app)
}

/// The body of a request for an order.
#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    copies: i64,
}

/// An order with the state of its chain.
#[derive(Serialize)]
pub(crate) struct OrderStatus {
    pub(crate) id: String,
    pub(crate) customer: String,
    pub(crate) copies: i64,
    pub(crate) printed: i64,
    pub(crate) status: &'static str,
    pub(crate) parcel: Option<String>,
    /// The address of the order, to ask again.
    pub(crate) link: String,
}

impl OrderStatus {
    /// Whether the order may still change.
    pub(crate) fn is_open(&self) -> bool {
        self.status == "open"
    }
}

/// Places an order, and waits for its end, though not for long. A client that hangs up meanwhile drops the wait, and
/// nothing else: the order goes on.
async fn place<S: Store>(app: &App<S>, order: &NewOrder) -> Result<ChainId, Failure> {
    if order.customer.trim().is_empty() || !(1..=1_000).contains(&order.copies) {
        return Err(Failure::Refused("a customer and 1 to 1000 copies are needed"));
    }
    let mut tx = app.client.begin().await?;
    let start = app.client.start(TakePaper { copies: order.copies });
    let chain = start.within(&mut tx).await?;
    S::insert_order(&mut tx, chain.id(), order.customer.trim(), order.copies).await?;
    tx.commit().await?; // now there are an order and its chain, or neither
    match app.client.wait(&chain).timeout(app.patience).await {
        // Occupies no connection and no worker while it waits. The answer has the state of the order, however the wait ended.
        Ok(_) | Err(Error::WaitTimeout { .. } | Error::ChainDead { .. } | Error::ChainCancelled(_)) => Ok(chain.id()),
        Err(error) => Err(error.into()),
    }
}

/// The order and its chain.
async fn look_up<S: Store>(app: &App<S>, id: &str) -> Result<OrderStatus, Failure> {
    let id: ChainId = id.parse().map_err(|_| Failure::NotFound)?;
    let mut tx = app.client.begin().await?; // only reads, so it is not committed
    // Read the chain first: each statement sees what is committed when it begins. The row of the order, read later, is then
    // at least as new as the chain, because the jobs write both in one transaction.
    let chain = app
        .client
        .get_chain(ChainRef::<TakePaper>::new(id))
        .within(&mut tx)
        .await?;
    let chain = chain.ok_or(Failure::NotFound)?;
    let order = S::find_order(&mut tx, id).await?.ok_or(Failure::NotFound)?;
    let status = match (chain.status, &chain.output) {
        (JobStatus::Completed, Some(Outcome::OutOfPaper)) => "out of paper",
        (JobStatus::Completed, _) => "shipped",
        (JobStatus::Dead, _) => "failed",
        (JobStatus::Cancelled, _) => "cancelled",
        (JobStatus::Blocked | JobStatus::Pending | JobStatus::Running, _) => "open",
    };
    let Order {
        customer,
        copies,
        printed,
        parcel,
        ..
    } = order;
    Ok(OrderStatus {
        id: id.to_string(),
        customer,
        copies,
        printed,
        status,
        parcel,
        link: format!("/api/orders/{id}"),
    })
}

/// 201 when the order is done, 409 when there is no paper, 202 with a link when it takes longer.
async fn order_by_api<S: Store>(State(app): State<App<S>>, Json(order): Json<NewOrder>) -> Result<Response, Failure> {
    let id = place(&app, &order).await?;
    let order = look_up(&app, &id.to_string()).await?;
    let status = match order.status {
        "shipped" => StatusCode::CREATED,
        "open" => StatusCode::ACCEPTED,
        "out of paper" => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let location = [(header::LOCATION, order.link.clone())];
    Ok((status, location, Json(order)).into_response())
}

async fn get_order<S: Store>(State(app): State<App<S>>, Path(id): Path<String>) -> Result<Json<OrderStatus>, Failure> {
    Ok(Json(look_up(&app, &id).await?))
}

/// Redirects to the page of the order, which reloads itself while the order is open.
async fn order_by_form<S: Store>(State(app): State<App<S>>, Form(order): Form<NewOrder>) -> Result<Redirect, Failure> {
    let id = place(&app, &order).await?;
    Ok(Redirect::to(&format!("/orders/{id}")))
}

async fn show_order<S: Store>(State(app): State<App<S>>, Path(id): Path<String>) -> Result<Html<String>, Failure> {
    Ok(Html(page::order(&look_up(&app, &id).await?)))
}

async fn show_form<S: Store>(State(app): State<App<S>>) -> Result<Html<String>, Failure> {
    let mut tx = app.client.begin().await?;
    Ok(Html(page::form(&S::latest_orders(&mut tx).await?)))
}

/// The error of a handler.
enum Failure {
    NotFound,
    Refused(&'static str),
    /// An error of the database, or of the queue in it.
    Internal(Box<dyn std::error::Error>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Internal(error.into())
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Internal(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "there is no such order\n").into_response(),
            Self::Refused(why) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{why}\n")).into_response(),
            Self::Internal(error) => {
                tracing::error!(error = &*error, "a request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "something is wrong on our side\n").into_response()
            }
        }
    }
}
