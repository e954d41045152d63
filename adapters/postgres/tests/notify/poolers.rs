//! Through PgBouncer in transaction mode.

use postgres_support::{Cluster, PgBouncer};
use queuert::adapter::{Demand, NotifyAdapter, Topic, Wake};

use super::line::{announce, jobs, next, options, workers};

#[tokio::test]
async fn a_listener_behind_a_pooler_in_transaction_mode_is_told_what_to_do() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 4).await;
    let notify = options().connect_lazy(&bouncer.url(), "queuert").expect("a URL");
    let error = notify
        .subscribe(Topic::Leases)
        .await
        .expect_err("it would hear nothing");
    assert!(error.to_string().contains("listen_with"), "{error}");
}

#[tokio::test]
async fn announcements_go_through_a_pooler_and_the_listener_around_it() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 1).await;
    let join = || {
        options()
            .listen_with(cluster.url().parse().expect("a URL"))
            .connect_lazy(&bouncer.url(), "queuert")
            .expect("a URL")
    };
    let (one, two) = (join(), join());
    let mut mail = workers(&one, &["mail"], &Demand::new(10)).await;
    for _ in 0..3 {
        announce(&two, &[jobs("mail", 1)]).await;
        two.flush().await.expect("it went out");
        assert_eq!(next(&mut mail).await, Wake::Notice(jobs("mail", 1)));
    }
}
