//! A channel of its own on the shared server, and few words for what the tests do with it.

use std::time::Duration;

use postgres_support::{server_url, unique_name};
use queuert::adapter::{Demand, Notice, NotifyAdapter, Subscription, Topic, Wake};
use queuert::{ChainId, JobId};
use queuert_postgres::{PostgresNotify, PostgresNotifyOptions};
use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection};

/// Longer than anything takes.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Longer than any test.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);

/// One value is one schema.
pub(crate) struct Line {
    pub(crate) schema: String,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            schema: unique_name("notify"),
        }
    }

    pub(crate) fn channel(&self) -> String {
        format!("queuert:{}", self.schema)
    }

    /// Another participant, as another process would be. It looks at the store only if it is told to.
    pub(crate) async fn join(&self) -> PostgresNotify {
        options()
            .connect_lazy(&server_url().await, &self.schema)
            .expect("the URL of the test server is one")
    }

    /// Ends all sessions of this line on the server.
    pub(crate) async fn end_all_sessions(&self) {
        sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1")
            .bind(format!("queuert notify {}", self.schema))
            .execute(&mut connection().await)
            .await
            .expect("sessions can be ended");
    }

    /// How many sessions of this line the server has.
    pub(crate) async fn sessions(&self, connection: &mut PgConnection) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1")
            .bind(format!("queuert notify {}", self.schema))
            .fetch_one(connection)
            .await
            .expect("the server answers")
    }

    /// Writes anything to the channel.
    pub(crate) async fn write(&self, payload: &str) {
        self.write_all(vec![payload.to_owned()]).await;
    }

    pub(crate) async fn write_all(&self, payloads: Vec<String>) {
        sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload")
            .bind(self.channel())
            .bind(payloads)
            .execute(&mut connection().await)
            .await
            .expect("the server takes it");
    }

    /// Somebody who reads what goes over the channel.
    pub(crate) async fn eavesdrop(&self) -> PgListener {
        let mut listener = PgListener::connect(&server_url().await).await.expect("it connects");
        listener.listen(&self.channel()).await.expect("it listens");
        listener
    }
}

/// Without looks at the store that no announcement asks for.
pub(crate) fn options() -> PostgresNotifyOptions {
    PostgresNotify::options().look_interval(NEVER)
}

pub(crate) async fn connection() -> PgConnection {
    PgConnection::connect(&server_url().await)
        .await
        .expect("the test server answers")
}

pub(crate) async fn workers(notify: &PostgresNotify, types: &[&'static str], demand: &Demand) -> Subscription {
    let topic = Topic::Jobs {
        types: types.iter().map(|name| (*name).into()).collect(),
        demand: demand.clone(),
    };
    notify.subscribe(topic).await.expect("subscribing works")
}

pub(crate) async fn leases(notify: &PostgresNotify) -> Subscription {
    notify.subscribe(Topic::Leases).await.expect("subscribing works")
}

pub(crate) async fn announce(notify: &PostgresNotify, notices: &[Notice]) {
    notify.announce(notices).await.expect("announcing works");
}

/// The next wake-up, which must come.
pub(crate) async fn next(subscription: &mut Subscription) -> Wake {
    tokio::time::timeout(SOON, subscription.recv())
        .await
        .expect("a wake-up comes")
        .expect("the adapter is there")
}

/// Waits for a wake-up that was asked for, and passes others over.
pub(crate) async fn until(subscription: &mut Subscription, wanted: impl Fn(&Wake) -> bool) -> Wake {
    loop {
        let wake = next(subscription).await;
        if wanted(&wake) {
            return wake;
        }
    }
}

/// Waits for a condition.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, holds).await.expect(what);
}

pub(crate) fn jobs(type_name: &'static str, count: usize) -> Notice {
    Notice::JobsAvailable {
        type_name: type_name.into(),
        count,
    }
}

pub(crate) fn job_id() -> JobId {
    JobId::from_uuid(uuid::Uuid::from_u128(fastrand::u128(..)))
}

pub(crate) fn chain_id() -> ChainId {
    job_id().as_chain()
}
