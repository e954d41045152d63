//! Connections that are lost, seem to be there, or cannot be made.

use std::sync::Arc;
use std::time::Duration;

use postgres_support::{Cluster, Proxy, Shutdown, server_url};
use queuert::adapter::{Demand, Notice, NotifyAdapter, Topic, Wake};
use queuert_postgres::PostgresNotify;
use sqlx::postgres::PgConnectOptions;

use super::line::{Line, SOON, announce, job_id, jobs, leases, next, options, until, workers};

/// After the resync the line works: it listened first.
async fn works(listener: &mut queuert::adapter::Subscription, announcer: &PostgresNotify) {
    let job = job_id();
    // The announcer's own connection may have been lost too; what fails is tried again.
    let _ = announcer.announce(&[Notice::LeaseLost(job)]).await;
    until(listener, |wake| *wake == Wake::Notice(Notice::LeaseLost(job))).await;
}

fn through(proxy: &Proxy, url: &str) -> PgConnectOptions {
    let direct: PgConnectOptions = url.parse().expect("a URL");
    direct.host("127.0.0.1").port(proxy.port())
}

async fn pool(url: &str) -> sqlx::PgPool {
    sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect(url)
        .await
        .expect("the server answers")
}

#[tokio::test]
async fn a_killed_listener_says_so_listens_again_and_then_everybody_looks() {
    let line = Line::new();
    let (listener, announcer) = (line.join().await, line.join().await);
    let mut lost = leases(&listener).await;
    let mut mail = workers(&listener, &["mail"], &Demand::new(1)).await;
    for _ in 0..3 {
        line.end_all_sessions().await;
        for subscription in [&mut mail, &mut lost] {
            // Although the first try to listen again succeeds.
            let wake = until(subscription, |wake| !matches!(wake, Wake::Notice(_))).await;
            assert!(
                matches!(&wake, Wake::Failed(error) if error.contains("listener")),
                "{wake:?}"
            );
            until(subscription, |wake| *wake == Wake::Resync).await;
        }
        works(&mut lost, &announcer).await;
    }
}

#[tokio::test]
async fn a_connection_that_only_seems_to_be_there_is_noticed() {
    let cluster = Cluster::launch().await;
    let proxy = Proxy::to(cluster.port()).await;
    let notify = options()
        .listen_with(through(&proxy, &cluster.url()))
        .check_interval(Duration::from_millis(200))
        .from_pool(pool(&cluster.url()).await, "queuert");
    let mut lost = leases(&notify).await;
    let before = proxy.accepted();
    proxy.abandon();
    assert!(matches!(next(&mut lost).await, Wake::Failed(_)));
    assert_eq!(next(&mut lost).await, Wake::Resync);
    assert!(proxy.accepted() > before, "it made another connection");
    works(&mut lost, &notify).await;
}

/// A check must not lose what comes in while it is made.
#[tokio::test]
async fn nothing_is_lost_to_the_checks() {
    let line = Line::new();
    let listener = options()
        .check_interval(Duration::from_millis(10))
        .from_pool(pool(&server_url().await).await, &line.schema);
    let announcer = line.join().await;
    let mut lost = leases(&listener).await;
    for _ in 0..200 {
        let job = job_id();
        announce(&announcer, &[Notice::LeaseLost(job)]).await;
        assert_eq!(next(&mut lost).await, Wake::Notice(Notice::LeaseLost(job)));
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_told_of_and_waited_for() {
    let cluster = Cluster::launch().await;
    let proxy = Proxy::to(cluster.port()).await;
    let notify = options()
        .listen_with(through(&proxy, &cluster.url()))
        .from_pool(pool(&cluster.url()).await, "queuert");
    let mut lost = leases(&notify).await;
    proxy.refuse(true);
    let failed = |wake: &Wake| matches!(wake, Wake::Failed(error) if error.contains("listener"));
    until(&mut lost, failed).await;
    // Who subscribes now is told the same, and need not subscribe again.
    let mut late = tokio::time::timeout(SOON, leases(&notify))
        .await
        .expect("it does not wait");
    until(&mut late, failed).await;
    proxy.refuse(false);
    for subscription in [&mut lost, &mut late] {
        until(subscription, |wake| *wake == Wake::Resync).await;
        works(subscription, &notify).await;
    }
}

#[tokio::test]
async fn restarts_and_crashes_of_the_server_are_survived() {
    let cluster = Cluster::launch().await;
    let listener = options().connect_lazy(&cluster.url(), "queuert").expect("a URL");
    let announcer = options().connect_lazy(&cluster.url(), "queuert").expect("a URL");
    let mut lost = leases(&listener).await;
    works(&mut lost, &announcer).await;
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        cluster.stop(how).await;
        until(&mut lost, |wake| matches!(wake, Wake::Failed(_))).await;
        // What is announced meanwhile fails, is kept, and goes out later; or everybody has looked by then. It fails
        // after a while, and it is the same for both.
        if how == Shutdown::Fast {
            let error = announcer
                .announce(&[Notice::LeaseLost(job_id())])
                .await
                .expect_err("the server is away");
            assert!(error.to_string().contains("announcement"), "{error}");
        }
        cluster.start().await;
        until(&mut lost, |wake| *wake == Wake::Resync).await;
        works(&mut lost, &announcer).await;
    }
}

#[tokio::test]
async fn what_could_not_be_announced_goes_out_when_it_can() {
    let cluster = Cluster::launch().await;
    let proxy = Proxy::to(cluster.port()).await;
    let announcer = options().from_pool(
        sqlx::postgres::PgPoolOptions::new()
            .max_connections(1)
            .connect_with(through(&proxy, &cluster.url()))
            .await
            .expect("the server answers"),
        "queuert",
    );
    let listener = options().connect_lazy(&cluster.url(), "queuert").expect("a URL");
    let mut mail = workers(&listener, &["mail"], &Demand::new(100)).await;
    proxy.refuse(true);
    announcer
        .announce(&[jobs("mail", 3)])
        .await
        .expect_err("nothing goes through");
    // Those that follow wait for the same way out, and whoever announces hears why.
    let told = async {
        while announcer.announce(&[jobs("mail", 1)]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, told).await.expect("it is told");
    announcer.flush().await.ok();
    proxy.refuse(false);
    let wake = next(&mut mail).await;
    assert!(
        matches!(wake, Wake::Notice(Notice::JobsAvailable { count, .. }) if count >= 4),
        "{wake:?}"
    );
}

#[tokio::test]
async fn who_cannot_listen_from_the_start_is_told_why() {
    let cluster = Cluster::launch().await;
    let nowhere = options()
        .connect_lazy("postgres://postgres@127.0.0.1:1/postgres", "queuert")
        .expect("a URL");
    let no_such_base = options().connect_lazy(&cluster.url().replace("/postgres", "/nothing"), "queuert");
    let nobody = options().connect_lazy(&cluster.url().replace("postgres@", "nobody@"), "queuert");
    for (notify, reason) in [
        (nowhere, "refused"),
        (no_such_base.expect("a URL"), "\"nothing\" does not exist"),
        (nobody.expect("a URL"), "\"nobody\" does not exist"),
    ] {
        let error = notify.subscribe(Topic::Leases).await.expect_err("nobody is there");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(error.to_string().contains("cannot connect"), "{error}");
    }
    // And may try again at any time.
    let proxy = Proxy::to(cluster.port()).await;
    proxy.refuse(true);
    let notify = options()
        .listen_with(through(&proxy, &cluster.url()))
        .from_pool(pool(&cluster.url()).await, "queuert");
    notify.subscribe(Topic::Leases).await.expect_err("nobody is there");
    proxy.refuse(false);
    let mut lost = leases(&notify).await;
    works(&mut lost, &notify).await;
}

/// A process may have several runtimes, and the one that listens may end first.
#[test]
fn when_the_runtime_that_listens_ends_subscriptions_elsewhere_end_and_can_be_made_again() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let (first, second) = (runtime(), runtime());
    let line = Line::new();
    let notify = Arc::new(first.block_on(line.join()));
    let mut lost = first.block_on(leases(&notify));
    first.shutdown_timeout(SOON);
    second.block_on(async {
        let ended = tokio::time::timeout(SOON, lost.recv()).await.expect("it is told");
        assert_eq!(ended, None);
        let other = line.join().await;
        let mut lost = leases(&other).await;
        works(&mut lost, &other).await;
    });
}

/// A runtime ends before its second announcement is out: another one sends it, and does not wait for the first for ever.
#[test]
fn what_a_runtime_has_left_behind_is_sent_by_another() {
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built")
    };
    let (first, second) = (runtime(), runtime());
    let line = Line::new();
    let (announcer, listener) = second.block_on(async { (line.join().await, line.join().await) });
    let mut lost = second.block_on(leases(&listener));
    let jobs = [job_id(), job_id()];
    first.block_on(async {
        // The first goes at once, the second shares the next statement.
        for job in jobs {
            announce(&announcer, &[Notice::LeaseLost(job)]).await;
        }
    });
    drop(first);
    second.block_on(async {
        tokio::time::timeout(SOON, announcer.flush())
            .await
            .expect("it is not waited for ever")
            .expect("all went out");
        for job in jobs {
            until(&mut lost, |wake| *wake == Wake::Notice(Notice::LeaseLost(job))).await;
        }
    });
}

/// A runtime that is kept and not driven keeps no announcement of another one back.
#[test]
fn a_runtime_that_nobody_drives_keeps_no_announcement_back() {
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built")
    };
    let (kept, driven) = (runtime(), runtime());
    let line = Line::new();
    let (announcer, listener) = driven.block_on(async { (line.join().await, line.join().await) });
    let mut lost = driven.block_on(leases(&listener));
    // Its task rests for some milliseconds now, and nobody wakes it.
    kept.block_on(announce(&announcer, &[Notice::LeaseLost(job_id())]));
    let job = job_id();
    driven.block_on(async {
        announce(&announcer, &[Notice::LeaseLost(job)]).await;
        until(&mut lost, |wake| *wake == Wake::Notice(Notice::LeaseLost(job))).await;
    });
    drop(kept);
}

/// Nor does one that stands still in the middle of a send, with its connection.
#[test]
fn a_runtime_that_stands_still_while_it_announces_keeps_nothing_back() {
    let kept = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let kept = kept.expect("a runtime can be built");
    let driven = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let line = Line::new();
    let (announcer, listener) = driven.block_on(async { (line.join().await, line.join().await) });
    let mut lost = driven.block_on(leases(&listener));
    // One that listens does not wait for its announcements.
    let _listening = driven.block_on(leases(&announcer));
    kept.block_on(async {
        announce(&announcer, &[Notice::LeaseLost(job_id())]).await;
        // Its task is polled once: it has its place, and asks for a connection.
        tokio::task::yield_now().await;
    });
    let jobs = [job_id(), job_id()];
    driven.block_on(async {
        for job in jobs {
            announce(&announcer, &[Notice::LeaseLost(job)]).await;
            until(&mut lost, |wake| *wake == Wake::Notice(Notice::LeaseLost(job))).await;
        }
    });
    drop(kept);
}
