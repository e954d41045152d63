//! The application's own tables. A service usually has one database, and would write its SQL in the handlers and
//! processors. This one runs on two, so its statements are behind a trait. Keep the implementation that you need.

mod postgres;
mod sqlite;

use std::future::Future;

use queuert::ChainId;
use queuert::adapter::StateAdapter;

/// An order, which has the id of the chain that works on it.
pub(crate) struct Order {
    pub(crate) id: ChainId,
    pub(crate) customer: String,
    pub(crate) copies: i64,
    pub(crate) printed: i64,
    pub(crate) parcel: Option<String>,
}

/// The statements of this application, on a connection of the store: that of a transaction.
pub(crate) trait Store: StateAdapter {
    /// Creates the tables where they are missing, and fills the stock of a new shop.
    fn create_tables(connection: &mut Self::Connection, paper: i64) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn insert_order(
        connection: &mut Self::Connection,
        id: ChainId,
        customer: &str,
        copies: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Takes sheets from the stock, if there are enough.
    fn take_paper(connection: &mut Self::Connection, sheets: i64) -> impl Future<Output = sqlx::Result<bool>> + Send;

    fn count_copy(connection: &mut Self::Connection, id: ChainId) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn ship(
        connection: &mut Self::Connection,
        id: ChainId,
        parcel: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn find_order(
        connection: &mut Self::Connection,
        id: ChainId,
    ) -> impl Future<Output = sqlx::Result<Option<Order>>> + Send;

    /// The latest orders, newest first.
    fn latest_orders(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<Vec<Order>>> + Send;

    /// Ends all connections.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// An order as its row is read.
type Row = (String, String, i64, i64, Option<String>);

impl TryFrom<Row> for Order {
    type Error = sqlx::Error;

    fn try_from((id, customer, copies, printed, parcel): Row) -> Result<Self, sqlx::Error> {
        let id = id.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Self {
            id,
            customer,
            copies,
            printed,
            parcel,
        })
    }
}
