//! The set-up does what the tests that use it believe.

use std::time::Duration;

use postgres_support::{Cluster, PgBouncer, Proxy, Shutdown, server_url};
use sqlx::{Connection, Executor, PgConnection};

const SOON: Duration = Duration::from_secs(30);
/// Longer than an answer takes, and short enough to wait for one that must not come.
const A_WHILE: Duration = Duration::from_millis(300);

async fn connect(port: u16) -> Result<PgConnection, sqlx::Error> {
    PgConnection::connect(&format!("postgres://postgres@127.0.0.1:{port}/postgres")).await
}

async fn pid(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(connection)
        .await
}

#[tokio::test]
async fn there_is_a_server_that_lets_tests_create_schemas() {
    let mut connection = PgConnection::connect(&server_url().await).await.unwrap();
    let schema = postgres_support::unique_name("support");
    for statement in ["CREATE", "DROP"] {
        let sql = format!("{statement} SCHEMA {schema}");
        connection.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    }
}

#[tokio::test]
async fn a_private_server_keeps_its_data_over_restarts_and_crashes() {
    let cluster = Cluster::launch().await;
    let mut before = cluster.connect().await;
    before.execute("CREATE TABLE kept (n int)").await.unwrap();
    for (n, how) in [(1, Shutdown::Fast), (2, Shutdown::Immediate)] {
        let mut writer = cluster.connect().await;
        sqlx::query("INSERT INTO kept VALUES ($1)")
            .bind(n)
            .execute(&mut writer)
            .await
            .unwrap();
        cluster.restart(how).await;
        writer.ping().await.unwrap_err();
    }
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM kept")
        .fetch_one(&mut cluster.connect().await)
        .await
        .unwrap();
    assert_eq!(kept, 2);
    let port = cluster.port();
    drop(cluster);
    connect(port).await.unwrap_err();
}

#[tokio::test]
async fn a_read_only_server_refuses_writes_in_old_and_new_sessions_until_it_takes_them_again() {
    let cluster = Cluster::launch().await;
    let mut old = cluster.connect().await;
    cluster.set_read_only(true).await;
    for session in [&mut old, &mut cluster.connect().await] {
        let error = session.execute("CREATE TABLE refused ()").await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "25006");
    }
    cluster.set_read_only(false).await;
    old.execute("CREATE TABLE taken ()").await.unwrap();
}

#[tokio::test]
async fn a_proxy_cuts_abandons_freezes_refuses_and_delays() {
    let cluster = Cluster::launch().await;
    let proxy = Proxy::to(cluster.port()).await;
    let mut one = connect(proxy.port()).await.unwrap();
    pid(&mut one).await.unwrap();
    proxy.cut();
    pid(&mut one).await.unwrap_err();

    let mut two = connect(proxy.port()).await.unwrap();
    proxy.abandon();
    tokio::time::timeout(A_WHILE, pid(&mut two)).await.unwrap_err();

    let mut three = connect(proxy.port()).await.unwrap();
    let before = pid(&mut three).await.unwrap();
    proxy.freeze(true);
    {
        let mut asking = std::pin::pin!(pid(&mut three));
        tokio::time::timeout(A_WHILE, asking.as_mut()).await.unwrap_err();
        tokio::time::timeout(A_WHILE, connect(proxy.port())).await.unwrap_err();
        proxy.freeze(false);
        let after = tokio::time::timeout(SOON, asking).await.unwrap().unwrap();
        assert_eq!(after, before);
    }
    proxy.delay(Duration::from_millis(50));
    let asked = tokio::time::Instant::now();
    pid(&mut three).await.unwrap();
    assert!(asked.elapsed() >= Duration::from_millis(100), "there and back");
    proxy.delay(Duration::ZERO);

    proxy.refuse(true);
    pid(&mut three).await.unwrap_err();
    connect(proxy.port()).await.unwrap_err();
    proxy.refuse(false);
    connect(proxy.port()).await.unwrap();
    assert!(proxy.accepted() >= 6);
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_shares_one_server_connection() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 1).await;
    let mut one = connect(bouncer.port()).await.unwrap();
    let mut two = PgConnection::connect(&bouncer.url()).await.unwrap();
    let backend = |_| sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()").persistent(false);
    let first = backend(()).fetch_one(&mut one).await.unwrap();
    let second = backend(()).fetch_one(&mut two).await.unwrap();
    assert_eq!(first, second);
}
