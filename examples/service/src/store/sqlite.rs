//! On SQLite.

use queuert::ChainId;
use queuert_sqlite::SqliteState;
use sqlx::SqliteConnection;
use tracing::warn;

use super::{Order, Row, Store};

impl Store for SqliteState {
    async fn create_tables(connection: &mut SqliteConnection, paper: i64) -> sqlx::Result<()> {
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS orders (
                number INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                customer TEXT NOT NULL,
                copies INTEGER NOT NULL,
                printed INTEGER NOT NULL DEFAULT 0,
                parcel TEXT
             );
             CREATE TABLE IF NOT EXISTS paper (sheets INTEGER NOT NULL)",
        )
        .execute(&mut *connection)
        .await?;
        sqlx::query("INSERT INTO paper SELECT ? WHERE NOT EXISTS (SELECT * FROM paper)")
            .bind(paper)
            .execute(connection)
            .await
            .map(drop)
    }

    async fn insert_order(
        connection: &mut SqliteConnection,
        id: ChainId,
        customer: &str,
        copies: i64,
    ) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO orders (id, customer, copies) VALUES (?, ?, ?)")
            .bind(id.to_string())
            .bind(customer)
            .bind(copies)
            .execute(connection)
            .await
            .map(drop)
    }

    async fn take_paper(connection: &mut SqliteConnection, sheets: i64) -> sqlx::Result<bool> {
        let taken = sqlx::query("UPDATE paper SET sheets = sheets - ?1 WHERE sheets >= ?1")
            .bind(sheets)
            .execute(connection)
            .await?;
        Ok(taken.rows_affected() == 1)
    }

    async fn count_copy(connection: &mut SqliteConnection, id: ChainId) -> sqlx::Result<()> {
        sqlx::query("UPDATE orders SET printed = printed + 1 WHERE id = ?")
            .bind(id.to_string())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn ship(connection: &mut SqliteConnection, id: ChainId, parcel: &str) -> sqlx::Result<()> {
        sqlx::query("UPDATE orders SET parcel = ? WHERE id = ?")
            .bind(parcel)
            .bind(id.to_string())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn find_order(connection: &mut SqliteConnection, id: ChainId) -> sqlx::Result<Option<Order>> {
        let row: Option<Row> = sqlx::query_as("SELECT id, customer, copies, printed, parcel FROM orders WHERE id = ?")
            .bind(id.to_string())
            .fetch_optional(connection)
            .await?;
        row.map(Order::try_from).transpose()
    }

    async fn latest_orders(connection: &mut SqliteConnection) -> sqlx::Result<Vec<Order>> {
        let rows: Vec<Row> =
            sqlx::query_as("SELECT id, customer, copies, printed, parcel FROM orders ORDER BY number DESC LIMIT 20")
                .fetch_all(connection)
                .await?;
        rows.into_iter().map(Order::try_from).collect()
    }

    async fn close(&self) {
        if let Err(error) = SqliteState::close(self).await {
            warn!(%error, "the database is not closed");
        }
    }
}
