//! On Postgres.

use queuert::ChainId;
use queuert_postgres::PostgresState;
use sqlx::PgConnection;

use super::{Order, Row, Store};

/// The key of an advisory lock: two processes that create the tables at the same moment would collide without it.
const LOCK: i64 = 0x7072_696e_7473;

impl Store for PostgresState {
    async fn create_tables(connection: &mut PgConnection, paper: i64) -> sqlx::Result<()> {
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(LOCK)
            .execute(&mut *connection)
            .await?;
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS orders (
                id text PRIMARY KEY,
                number bigint GENERATED ALWAYS AS IDENTITY,
                customer text NOT NULL,
                copies bigint NOT NULL,
                printed bigint NOT NULL DEFAULT 0,
                parcel text
             );
             CREATE TABLE IF NOT EXISTS paper (sheets bigint NOT NULL)",
        )
        .execute(&mut *connection)
        .await?;
        sqlx::query("INSERT INTO paper SELECT $1 WHERE NOT EXISTS (SELECT FROM paper)")
            .bind(paper)
            .execute(connection)
            .await
            .map(drop)
    }

    async fn insert_order(connection: &mut PgConnection, id: ChainId, customer: &str, copies: i64) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO orders (id, customer, copies) VALUES ($1, $2, $3)")
            .bind(id.to_string())
            .bind(customer)
            .bind(copies)
            .execute(connection)
            .await
            .map(drop)
    }

    async fn take_paper(connection: &mut PgConnection, sheets: i64) -> sqlx::Result<bool> {
        let taken = sqlx::query("UPDATE paper SET sheets = sheets - $1 WHERE sheets >= $1")
            .bind(sheets)
            .execute(connection)
            .await?;
        Ok(taken.rows_affected() == 1)
    }

    async fn count_copy(connection: &mut PgConnection, id: ChainId) -> sqlx::Result<()> {
        sqlx::query("UPDATE orders SET printed = printed + 1 WHERE id = $1")
            .bind(id.to_string())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn ship(connection: &mut PgConnection, id: ChainId, parcel: &str) -> sqlx::Result<()> {
        sqlx::query("UPDATE orders SET parcel = $1 WHERE id = $2")
            .bind(parcel)
            .bind(id.to_string())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn find_order(connection: &mut PgConnection, id: ChainId) -> sqlx::Result<Option<Order>> {
        let row: Option<Row> = sqlx::query_as("SELECT id, customer, copies, printed, parcel FROM orders WHERE id = $1")
            .bind(id.to_string())
            .fetch_optional(connection)
            .await?;
        row.map(Order::try_from).transpose()
    }

    async fn latest_orders(connection: &mut PgConnection) -> sqlx::Result<Vec<Order>> {
        let rows: Vec<Row> =
            sqlx::query_as("SELECT id, customer, copies, printed, parcel FROM orders ORDER BY number DESC LIMIT 20")
                .fetch_all(connection)
                .await?;
        rows.into_iter().map(Order::try_from).collect()
    }

    async fn close(&self) {
        PostgresState::close(self).await;
    }
}
