//! The store through PgBouncer in transaction mode, where the next transaction may run on another server process.

use std::time::Duration;

use postgres_support::{Cluster, PgBouncer};
use queuert::{Client, JobTypes};
use queuert_postgres::{Attempt, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::Row;

const SOON: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize)]
struct Count {
    number: u32,
}

#[derive(Serialize, Deserialize)]
struct Note {
    number: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, continues = [Note])]
    Count(Count),
    #[job(output = u32)]
    Note(Note),
}

/// Two processes with fewer server connections than they have of their own: steps with and without transactions, and
/// starts inside of some, all end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_is_found_out_and_put_up_with() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 3).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let state = PostgresState::connect(&bouncer.url())
            .await
            .expect("a pooler is no hindrance");
        clients.push((state.clone(), Client::new(state)));
    }
    let mut connection = cluster.connect().await;
    sqlx::raw_sql("CREATE TABLE note (number integer PRIMARY KEY)")
        .execute(&mut connection)
        .await
        .expect("the user's table can be made");
    let mut workers = Vec::new();
    for (_, client) in &clients {
        let worker = client
            .worker()
            .concurrency(8)
            // Nobody tells one of the two what the other one has done.
            .poll_interval(SOON)
            .process(|job: Attempt<Count>| async move {
                let number = job.number;
                job.continue_with(Note { number })
            })
            .process(|job: Attempt<Note>| async move {
                let number = job.number;
                let mut transaction = job.begin().await?;
                sqlx::query("INSERT INTO note VALUES ($1)")
                    .bind(i32::try_from(number)?)
                    .persistent(false)
                    .execute(&mut *transaction)
                    .await?;
                transaction.finish(number).await
            });
        workers.push(worker.start().await.expect("the workers start"));
    }
    let (state, client) = &clients[0];
    let mut chains = Vec::new();
    for number in 0..60 {
        let mut transaction = client.begin().await.expect("a transaction can be begun");
        let start = client.start(Count { number }).within(&mut transaction).await;
        chains.push((number, start.expect("the chain starts")));
        transaction.commit().await.expect("nothing failed");
    }
    for (number, chain) in &chains {
        let ended = client.wait(chain).poll_interval(SOON).await;
        assert_eq!(ended.expect("every chain ends"), *number);
    }
    for worker in workers {
        worker.stop().await;
    }
    let notes: i64 = sqlx::query_scalar("SELECT count(*) FROM note")
        .fetch_one(&mut connection)
        .await
        .expect("the notes are there");
    assert_eq!(notes, 60);
    // Whoever gets these server connections next finds nothing of ours on them.
    for _ in 0..6 {
        let row = sqlx::raw_sql(
            "SELECT current_setting('enable_seqscan'), (SELECT count(*) FROM pg_prepared_statements)::text",
        )
        .fetch_one(state.pool())
        .await
        .expect("settings can be read");
        let kept: [String; 2] = [row.get(0), row.get(1)];
        assert_eq!(kept, ["on", "0"]);
    }
}
