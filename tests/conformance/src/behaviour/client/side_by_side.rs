//! Enums of job types side by side, in one client and one worker.

use queuert::{Attempt, ChainHandle, JobStatus, JobType};
use serde::{Deserialize, Serialize};

use super::jobs::{AfterBoth, Count, First, POLL, crew, greet, greeting, hasty, run_all};
use super::probe::{chain_count, status};
use crate::behaviour::PairFixture;

/// A second application in the same store, which knows the first one's job types.
mod reports {
    use queuert::JobTypes;

    use super::super::jobs::{Count, First};
    use super::{Deserialize, Serialize};

    /// Sums up chains of two other enums.
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Sum;

    /// Doubles what was summed up.
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Double {
        pub(super) number: u32,
    }

    #[derive(Debug, JobTypes)]
    pub(super) enum Reports {
        #[job(entry, blockers = (First, Count), continues = [Double])]
        Sum(Sum),
        #[job(name = "reports/double", output = u32)]
        Double(Double),
    }
}
use reports::{Double, Reports, ReportsAttempt, Sum};

/// One client starts chains of several enums, and one worker runs them, blockers across them included.
pub async fn enums_share_a_client_and_a_worker<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let workers = crew(&client)
        .process_all::<Reports, _, _>(|job| async move {
            match job {
                ReportsAttempt::Sum(job) => {
                    let (first, count) = *job.blockers();
                    job.continue_with(Double { number: first + count })
                }
                ReportsAttempt::Double(job) => {
                    let number = 2 * job.number;
                    job.finish(number)
                }
            }
        })
        .concurrency(2)
        .start()
        .await
        .expect("the workers start");
    let (first, count) = client
        .start_each((First { number: 1 }, Count { number: 7 }))
        .await
        .expect("they start");
    let sum = client.start(Sum.blocked_by((&first, &count))).await.expect("it starts");
    assert_eq!(client.wait(&sum).poll_interval(POLL).await.expect("it ends"), 20);
    workers.stop().await;
}

/// A worker for some types leaves those of other enums alone.
pub async fn a_worker_leaves_other_enums_alone<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (greeting, first) = client
        .start_each((greet("Ada"), First { number: 1 }))
        .await
        .expect("they start");
    let drained = hasty(&client)
        .process(|job: Attempt<First, F::State>| async move { job.continue_with(super::jobs::Second { number: 5 }) })
        .drain()
        .await
        .expect("the store answers");
    assert_eq!(drained.types(), [First::NAME]);
    assert_eq!(status(&client, &greeting).await, JobStatus::Pending);
    assert_eq!(
        status(&client, &first).await,
        JobStatus::Pending,
        "its next step has no processor here"
    );
    run_all(&client).await;
    assert_eq!(client.wait(&first).await.expect("it ended"), 6);
}

/// A handle that was made from an id alone is as good as the one that starting gave.
pub async fn a_handle_can_be_made_from_an_id<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (ada, count) = client
        .start_each((greet("Ada"), Count { number: 7 }))
        .await
        .expect("they start");
    let text = ada.id().to_string();
    let ada = queuert::ChainRef::new(text.parse().expect("an id goes through text"));
    let typed = client
        .get_chain(&count)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!(typed.chain_ref(), count.chain());
    let both = client
        .start(AfterBoth.blocked_by((ada, &typed)))
        .await
        .expect("it starts");
    run_all(&client).await;
    assert_eq!(
        client.wait(both).await.expect("it ended"),
        format!("{} 7", greeting("Ada"))
    );
    assert_eq!(chain_count(&client).await, 3);
}
