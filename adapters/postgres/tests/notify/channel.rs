//! What goes over the channel, and over which connections.

use std::collections::HashSet;
use std::time::Duration;

use postgres_support::{ClusterOptions, server_url, unique_name};
use queuert::adapter::{Demand, Notice, NotifyAdapter, Topic, Wake};
use sqlx::{Connection, Executor};

use super::line::{
    Line, announce, chain_id, connection, eventually, job_id, jobs, leases, next, options, until, workers,
};

#[tokio::test]
async fn anything_may_be_written_to_the_channel() {
    let line = Line::new();
    let (listener, announcer) = (line.join().await, line.join().await);
    let mut lost = leases(&listener).await;
    let mut mail = workers(&listener, &["mail"], &Demand::new(10)).await;
    let head = "q1000000000000000712.";
    let long = "x".repeat(7_999);
    for garbage in [
        "",
        "hello",
        "{\"type\":\"mail\"}",
        "q1",
        "q2000000000000000712.J1:4:mail",
        &format!("{head}J"),
        &format!("{head}J1:400:mail"),
        &format!("{head}J18446744073709551616:4:mail"),
        &format!("{head}L1234"),
        &format!("{head}Lzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"),
        &format!("{head}P99999999:00"),
        &format!("{head}üüüü"),
        &long,
    ] {
        line.write(garbage).await;
    }
    let job = job_id();
    announce(&announcer, &[Notice::LeaseLost(job), jobs("mail", 1)]).await;
    assert_eq!(next(&mut lost).await, Wake::Notice(Notice::LeaseLost(job)));
    assert_eq!(next(&mut mail).await, Wake::Notice(jobs("mail", 1)));
}

/// What a later version adds at the end of a payload does not hide what is known.
#[tokio::test]
async fn what_is_understood_counts() {
    let line = Line::new();
    let listener = line.join().await;
    let mut lost = leases(&listener).await;
    let job = job_id();
    let id = job.as_uuid().simple();
    line.write(&format!("q1000000000000000712.L{id}Z9:new")).await;
    assert_eq!(next(&mut lost).await, Wake::Notice(Notice::LeaseLost(job)));
}

#[tokio::test]
async fn more_than_one_payload_can_carry_is_heard_completely() {
    let line = Line::new();
    let (listener, announcer) = (line.join().await, line.join().await);
    let mut chains = Vec::new();
    for _ in 0..1_000 {
        let chain = chain_id();
        let subscription = listener
            .subscribe(Topic::Chain(chain))
            .await
            .expect("subscribing works");
        chains.push((chain, subscription));
    }
    let mut ears = line.eavesdrop().await;
    let notices: Vec<_> = chains.iter().map(|(chain, _)| Notice::ChainEnded(*chain)).collect();
    announce(&announcer, &notices).await;
    for (chain, subscription) in &mut chains {
        assert_eq!(next(subscription).await, Wake::Notice(Notice::ChainEnded(*chain)));
    }
    let mut told = 0;
    let mut payloads = 0;
    while told < 1_000 {
        let payload = ears.recv().await.expect("it is heard");
        assert!(payload.payload().len() < 8_000);
        told += payload.payload().matches('C').count();
        payloads += 1;
    }
    assert!(payloads >= 5, "{payloads} payloads for 33 kB");
}

/// More than can be told at all: everybody looks.
#[tokio::test]
async fn too_many_ends_become_a_look_at_the_store() {
    let line = Line::new();
    let (listener, announcer) = (line.join().await, line.join().await);
    let chain = chain_id();
    let mut ended = listener
        .subscribe(Topic::Chain(chain))
        .await
        .expect("subscribing works");
    let mut notices: Vec<_> = (0..10_000).map(|_| Notice::ChainEnded(chain_id())).collect();
    notices.push(Notice::ChainEnded(chain));
    announce(&announcer, &notices).await;
    until(&mut ended, |wake| matches!(wake, Wake::Resync)).await;
}

#[tokio::test]
async fn announcements_of_a_process_share_a_few_statements() {
    let cluster = ClusterOptions::default()
        .setting("shared_preload_libraries", "pg_stat_statements")
        .start()
        .await;
    let mut server = cluster.connect().await;
    server
        .execute("CREATE EXTENSION pg_stat_statements")
        .await
        .expect("the extension is there");
    let notify = options().connect_lazy(&cluster.url(), "queuert").expect("a URL");
    let mut heard = sqlx::postgres::PgListener::connect(&cluster.url())
        .await
        .expect("it connects");
    heard.listen("queuert:queuert").await.expect("it listens");
    for _ in 0..500 {
        announce(&notify, &[jobs("mail", 2), jobs("bill", 1)]).await;
    }
    notify.flush().await.expect("all went out");
    let statements: i64 =
        sqlx::query_scalar("SELECT sum(calls)::int8 FROM pg_stat_statements WHERE query LIKE '%pg_notify(%'")
            .fetch_one(&mut server)
            .await
            .expect("statements are counted");
    assert!(statements <= 50, "{statements} statements for 500 announcements");
    // And nothing of them is missing.
    let (mut mail, mut bill) = (0, 0);
    while mail < 1_000 || bill < 500 {
        let payload = heard.recv().await.expect("it is heard");
        let count = |name: &str| -> usize {
            let items = payload.payload().split('J').skip(1);
            let mut counts = items
                .filter(|item| item.ends_with(name))
                .filter_map(|item| item.split(':').next());
            counts.next().map_or(0, |count| count.parse().expect("a number"))
        };
        mail += count("mail");
        bill += count("bill");
    }
    assert_eq!((mail, bill), (1_000, 500));
}

#[tokio::test]
async fn all_subscriptions_share_one_connection_that_comes_and_goes_with_them() {
    let line = Line::new();
    let pool = sqlx::PgPool::connect(&server_url().await)
        .await
        .expect("the server answers");
    let notify = options()
        .linger(Duration::from_millis(50))
        .from_pool(pool, &line.schema);
    let mut server = connection().await;
    announce(&notify, &[jobs("mail", 1)]).await;
    assert_eq!(line.sessions(&mut server).await, 0, "nobody listens");
    for _ in 0..2 {
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(leases(&notify).await);
            held.push(workers(&notify.clone(), &["mail"], &Demand::new(1)).await);
        }
        assert_eq!(line.sessions(&mut server).await, 1);
        drop(held);
        eventually("the connection is closed when nobody listens", async || {
            line.sessions(&mut connection().await).await == 0
        })
        .await;
    }
    // And with the adapter, however long it would have lingered.
    let notify = line.join().await;
    let subscription = leases(&notify).await;
    drop((notify, subscription));
    eventually("the connections are closed with the adapter", async || {
        line.sessions(&mut connection().await).await == 0
    })
    .await;
}

#[tokio::test]
async fn any_schema_has_a_channel_of_its_own() {
    let unique = unique_name("odd");
    let names = ["a b", "A b", "it's", "\"quoted\"", "ü;--", "$1", &"long".repeat(20), ""];
    let mut lines = Vec::new();
    for name in names {
        let line = Line {
            schema: format!("{name}{unique}"),
        };
        let notify = line.join().await;
        let lost = leases(&notify).await;
        lines.push((notify, lost, job_id()));
    }
    for (notify, _, job) in &lines {
        // From inside a transaction, so that it goes over the server and comes back.
        let mut connection = connection().await;
        let mut transaction = connection.begin().await.expect("a transaction");
        notify
            .announce_within(&mut transaction, &[Notice::LeaseLost(*job)])
            .await
            .expect("announcing works");
        transaction.commit().await.expect("it commits");
    }
    for (_, lost, job) in &mut lines {
        assert_eq!(next(lost).await, Wake::Notice(Notice::LeaseLost(*job)));
    }
}

#[tokio::test]
async fn inside_a_transaction_it_is_told_at_the_commit_and_never_after_a_rollback() {
    let line = Line::new();
    let (own, other) = (line.join().await, line.join().await);
    let (mut here, mut there) = (leases(&own).await, leases(&other).await);
    let (undone, done, last) = (job_id(), job_id(), job_id());
    let mut connection = connection().await;

    let mut transaction = connection.begin().await.expect("a transaction");
    own.announce_within(&mut transaction, &[Notice::LeaseLost(undone)])
        .await
        .expect("announcing works");
    transaction.rollback().await.expect("it rolls back");

    let mut transaction = connection.begin().await.expect("a transaction");
    // The same thing twice in one transaction is one notification to Postgres; counts must survive that.
    for _ in 0..2 {
        own.announce_within(&mut transaction, &[Notice::LeaseLost(done)])
            .await
            .expect("announcing works");
    }
    own.announce_within(&mut transaction, &[])
        .await
        .expect("nothing is little to announce");
    announce(&other, &[Notice::LeaseLost(last)]).await;
    // What is announced later is heard first: the transaction is still open.
    assert_eq!(next(&mut here).await, Wake::Notice(Notice::LeaseLost(last)));
    assert_eq!(next(&mut there).await, Wake::Notice(Notice::LeaseLost(last)));
    transaction.commit().await.expect("it commits");
    for subscription in [&mut here, &mut there] {
        for _ in 0..2 {
            assert_eq!(next(subscription).await, Wake::Notice(Notice::LeaseLost(done)));
        }
    }
}

#[tokio::test]
async fn flush_sees_the_last_announcements_out() {
    let line = Line::new();
    let mut ears = line.eavesdrop().await;
    let notify = line.join().await;
    let jobs: HashSet<_> = (0..50).map(|_| job_id()).collect();
    for job in &jobs {
        announce(&notify, &[Notice::LeaseLost(*job)]).await;
    }
    notify.flush().await.expect("all went out");
    drop(notify);
    let mut told = String::new();
    while jobs
        .iter()
        .any(|job| !told.contains(&job.as_uuid().simple().to_string()))
    {
        told.push_str(ears.recv().await.expect("it is heard").payload());
    }
}
