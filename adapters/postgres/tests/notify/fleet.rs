//! Who of many processes looks for a new job.

use std::collections::HashSet;
use std::time::Duration;

use queuert::adapter::{Demand, Notice, Subscription, Wake};
use queuert_postgres::PostgresNotify;

use super::line::{Line, NEVER, announce, eventually, job_id, jobs, leases, next, options, until, workers};

struct Process {
    notify: PostgresNotify,
    demand: Demand,
    jobs: Subscription,
    leases: Subscription,
}

/// Processes that know each other, each with room for so many jobs of `mail`.
async fn fleet(line: &Line, size: usize, room: usize, stagger: Duration) -> Vec<Process> {
    // They announce through one pool, so that the test leaves the server some connections.
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(4)
        .connect(&postgres_support::server_url().await)
        .await
        .expect("the server answers");
    let mut fleet = Vec::new();
    for _ in 0..size {
        let notify = options().stagger(stagger).from_pool(pool.clone(), &line.schema);
        let demand = Demand::new(room);
        fleet.push(Process {
            jobs: workers(&notify, &["mail", "bill"], &demand).await,
            leases: leases(&notify).await,
            notify,
            demand,
        });
    }
    for process in &fleet {
        eventually("everybody knows everybody", async || process.notify.peers() == size - 1).await;
    }
    fleet
}

/// How many jobs each process was told of so far. Postgres delivers in order: who has heard of a marker that was
/// announced later has heard of all before.
async fn told(fleet: &mut [Process], announcer: &PostgresNotify) -> Vec<usize> {
    announcer.flush().await.expect("all went out");
    let marker = job_id();
    announce(announcer, &[Notice::LeaseLost(marker)]).await;
    let mut told = Vec::new();
    for process in fleet {
        until(&mut process.leases, |wake| {
            *wake == Wake::Notice(Notice::LeaseLost(marker))
        })
        .await;
        let mut count = 0;
        while let Ok(wake) = tokio::time::timeout(Duration::ZERO, process.jobs.recv()).await {
            match wake {
                Some(Wake::Notice(Notice::JobsAvailable { count: more, .. })) => count += more,
                other => panic!("{other:?}"),
            }
        }
        told.push(count);
    }
    told
}

#[tokio::test]
async fn one_new_job_makes_one_of_twenty_processes_look() {
    let line = Line::new();
    let mut fleet = fleet(&line, 20, 10, NEVER).await;
    let announcer = line.join().await;
    let mut looked = HashSet::new();
    for _ in 0..30 {
        announce(&announcer, &[jobs("mail", 1)]).await;
        let told = told(&mut fleet, &announcer).await;
        assert_eq!(told.iter().sum::<usize>(), 1, "{told:?}");
        looked.extend(told.iter().position(|count| *count == 1));
    }
    assert!(looked.len() > 5, "always the same ones: {looked:?}");
}

/// That is what keeps the others from looking later.
#[tokio::test]
async fn who_takes_a_job_says_so() {
    let line = Line::new();
    let fleet = fleet(&line, 3, 10, NEVER).await;
    let announcer = line.join().await;
    let mut ears = line.eavesdrop().await;
    announce(&announcer, &[jobs("mail", 1)]).await;
    let mut ticket = None;
    loop {
        let payload = ears.recv().await.expect("it is heard").payload().to_owned();
        if let Some(head) = payload.strip_suffix("J1:4:mail") {
            ticket = head.strip_prefix("q1").map(str::to_owned);
        } else if let Some(ticket) = &ticket
            && payload.contains(&format!("T{ticket}1:4:mail"))
        {
            break;
        }
    }
    drop(fleet);
}

#[tokio::test]
async fn many_new_jobs_are_shared_out_over_the_fleet() {
    let line = Line::new();
    let mut fleet = fleet(&line, 8, 10, NEVER).await;
    let announcer = line.join().await;
    announce(&announcer, &[jobs("mail", 20)]).await;
    let mut shares = told(&mut fleet, &announcer).await;
    shares.sort_unstable();
    assert_eq!(shares, [2, 2, 2, 2, 3, 3, 3, 3]);
}

#[tokio::test]
async fn what_the_announcing_process_takes_is_not_offered_to_others() {
    let line = Line::new();
    let mut fleet = fleet(&line, 4, 3, NEVER).await;
    let announcer = fleet[0].notify.clone();
    announce(&announcer, &[jobs("mail", 3)]).await;
    assert_eq!(told(&mut fleet, &announcer).await, [3, 0, 0, 0]);
    // It has room for no more, and does not count on itself.
    announce(&announcer, &[jobs("mail", 3)]).await;
    let told = told(&mut fleet, &announcer).await;
    assert_eq!(told[0], 0);
    assert!(
        told.iter().sum::<usize>() >= 2,
        "one share may be that of the announcer: {told:?}"
    );
}

#[tokio::test]
async fn busy_processes_are_passed_over() {
    let line = Line::new();
    let mut fleet = fleet(&line, 8, 0, Duration::from_millis(5)).await;
    let announcer = line.join().await;
    for process in &mut fleet {
        process.demand.set(1);
        announce(&announcer, &[jobs("mail", 1)]).await;
        assert_eq!(next(&mut process.jobs).await, Wake::Notice(jobs("mail", 1)));
    }
    assert_eq!(told(&mut fleet, &announcer).await, [0; 8]);
}

/// Processes that were killed are still known for a while, and never take anything.
#[tokio::test]
async fn dead_processes_are_passed_over() {
    let line = Line::new();
    let mut fleet = fleet(&line, 1, 100, Duration::from_millis(5)).await;
    line.write_all((1..=30).map(|ghost| format!("q1{ghost:016x}1.P*:")).collect())
        .await;
    let process = &mut fleet[0];
    eventually("the ghosts are known", async || process.notify.peers() == 30).await;
    let announcer = line.join().await;
    for _ in 0..10 {
        announce(&announcer, &[jobs("mail", 1)]).await;
        announcer.flush().await.expect("it went out");
        assert_eq!(next(&mut process.jobs).await, Wake::Notice(jobs("mail", 1)));
    }
}

#[tokio::test]
async fn who_leaves_is_not_counted_any_more() {
    let line = Line::new();
    let mut fleet = fleet(&line, 3, 10, NEVER).await;
    let gone = fleet.remove(0);
    // Its other subscriptions do not make it one that runs jobs.
    drop(gone.jobs);
    for process in &fleet {
        eventually("the others know", async || process.notify.peers() == 1).await;
    }
    drop(gone.leases);
}
