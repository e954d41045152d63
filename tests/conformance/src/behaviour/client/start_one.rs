//! Starting one chain.

use queuert::adapter::{CommitSpan, Creation, ObservabilityAdapter};
use queuert::{ChainRef, Client, Error, JobStatus, JobType, Step};

use super::jobs::{AfterAll, AfterOne, Count, First, Greet, Puzzle, Second, greet, greeting, run_all};
use super::probe::{chain, chain_count, job, job_count, own_id, status, unknown_chain};
use super::{assert_error, assert_item_refused};
use crate::behaviour::PairFixture;

/// A started chain is pending and new, and reads as it was started. (SC1, Q20)
pub async fn a_started_chain_is_pending_with_its_input<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    assert_eq!(started.status(), JobStatus::Pending);
    assert!(!started.deduplicated());
    let found = client
        .get_chain(&started)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!(found.input, greet("Ada"));
    assert_eq!(found.output, None);
    let record = found.into_record();
    assert_eq!(record.id, started.id());
    assert_eq!(record.type_name.as_str(), Greet::NAME);
    assert_eq!(record.latest_job, started.id().first_job());
    assert_eq!(record.latest_type.as_str(), Greet::NAME);
    assert_eq!((record.status, record.length), (JobStatus::Pending, 1));
    assert_eq!((record.output, record.ended_at, record.last_error), (None, None, None));
    assert_eq!(record.deduplication_key, None);
}

/// The first job of a chain has the chain's id, no attempt behind it and no lease. (SC1, Q30)
pub async fn the_first_job_has_the_id_of_its_chain<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let first = job(&client, started.id().first_job()).await;
    assert_eq!(first.chain_id, started.id());
    assert_eq!(first.chain_index, 0);
    assert_eq!(
        (first.type_name.as_str(), first.chain_type.as_str()),
        (Greet::NAME, Greet::NAME)
    );
    assert_eq!((first.attempt, first.claims), (0, 0));
    assert_eq!((first.started_at, first.ended_at), (None, None));
    assert_eq!((first.lease, first.last_error), (None, None));
    assert_eq!((first.max_attempts, first.completed_by), (None, None));
}

/// Ids are UUIDs of version 7, so that later chains sort behind earlier ones.
pub async fn ids_sort_by_creation<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut last = None;
    for number in 0..20 {
        let id = client.start(Count { number }).await.expect("it starts").id();
        assert_eq!(id.as_uuid().get_version_num(), 7);
        assert!(last < Some(id), "{id} does not sort behind {last:?}");
        last = Some(id);
    }
}

/// An id that the caller supplies names the chain and its first job. (SC9)
pub async fn a_supplied_id_names_the_chain<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).id(own_id(7)).await.expect("it starts");
    assert_eq!(started.id(), own_id(7).as_chain());
    assert_eq!(chain(&client, &started).await.latest_job, own_id(7));
    assert_eq!(job(&client, own_id(7)).await.chain_id, started.id());
}

/// A supplied id that exists is refused, and the chain that has it stays as it is. (9.5 H21)
pub async fn a_taken_id_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let first = client.start(greet("Ada")).id(own_id(7)).await.expect("it starts");
    let before = chain(&client, &first).await;
    let second = client.start(greet("Eve")).id(own_id(7)).await;
    assert_error!(second, Error::IdTaken(id) if id == own_id(7));
    assert_eq!(chain(&client, &first).await, before);
    let other_type = client.start(Count { number: 1 }).id(own_id(7)).await;
    assert_error!(other_type, Error::IdTaken(id) if id == own_id(7));
    assert_eq!(chain_count(&client).await, 1);
}

/// The id of a later job of a chain cannot be that of a new chain.
pub async fn the_id_of_a_later_job_is_taken<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let three_steps = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&three_steps)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    let next = Step::new(Second { number: 2 }).id(own_id(8));
    open.continue_with(next).await.expect("it continues");
    tx.commit().await.expect("it commits");
    let refused = client.start(greet("Eve")).id(own_id(8)).await;
    assert_error!(refused, Error::IdTaken(id) if id == own_id(8));
    assert_eq!(job_count(&client).await, 2);
}

/// A chain that waits for an open one is blocked. (SC3)
pub async fn a_chain_with_an_open_blocker_is_blocked<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    assert_eq!(waiting.status(), JobStatus::Blocked);
    assert_eq!(status(&client, &waiting).await, JobStatus::Blocked);
    assert_eq!(status(&client, &blocker).await, JobStatus::Pending);
}

/// A chain whose blockers have all completed is pending at once, and reads their outputs. (B2)
pub async fn a_chain_whose_blockers_completed_is_pending<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    run_all(&client).await;
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    assert_eq!(waiting.status(), JobStatus::Pending);
    run_all(&client).await;
    assert_eq!(client.wait(&waiting).await.expect("it ended"), greeting("Ada"));
}

/// A chain that waits for one that does not exist is refused with both ids, and nothing is started. (9.5 H20, H24)
pub async fn a_missing_blocker_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let nobody = ChainRef::<Greet>::new(unknown_chain());
    let refused = client.start(AfterOne.blocked_by(nobody)).id(own_id(7)).await;
    assert_error!(
        refused,
        Error::BlockerNotFound { job, chain } if job == own_id(7) && chain == unknown_chain()
    );
    assert_eq!(job_count(&client).await, 0);
}

/// A later job of a chain is no chain, so nobody can wait for it.
pub async fn a_later_job_is_no_blocker<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let jobs = client
        .list_jobs()
        .of_type::<Second>()
        .await
        .expect("jobs can be listed");
    let later = jobs.items[0].id.as_chain();
    let refused = client.start(AfterOne.blocked_by(ChainRef::new(later))).await;
    assert_error!(refused, Error::BlockerNotFound { chain, .. } if chain == later);
}

/// A blocker that is given twice blocks once and is read twice. (9.5 H24)
pub async fn a_blocker_given_twice_blocks_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client
        .start(AfterAll.blocked_by([&blocker, &blocker]))
        .await
        .expect("it starts");
    assert_eq!(waiting.status(), JobStatus::Blocked);
    run_all(&client).await;
    let outputs = client.wait(&waiting).await.expect("it ended");
    assert_eq!(outputs, [greeting("Ada"), greeting("Ada")]);
}

/// A job that may wait for any number of chains may wait for none.
pub async fn any_number_of_blockers_may_be_none<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let none: Vec<ChainRef<Greet>> = Vec::new();
    let started = client.start(AfterAll.blocked_by(none)).await.expect("it starts");
    assert_eq!(started.status(), JobStatus::Pending);
    run_all(&client).await;
    assert!(client.wait(&started).await.expect("it ended").is_empty());
}

/// The priority of a request wins over that of the job type, which holds without it.
pub async fn the_priority_of_the_request_wins<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let by_type = client.start(Count { number: 1 }).await.expect("it starts");
    let by_request = client.start(Count { number: 2 }).priority(9).await.expect("it starts");
    let by_default = client.start(greet("Ada")).await.expect("it starts");
    for (started, priority) in [(by_type.id(), -5), (by_request.id(), 9), (by_default.id(), 0)] {
        assert_eq!(job(&client, started.first_job()).await.priority, priority);
    }
}

/// The number of attempts that the starter chose is stored with the job.
pub async fn the_number_of_attempts_is_stored<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).max_attempts(3).await.expect("it starts");
    assert_eq!(job(&client, started.id().first_job()).await.max_attempts, Some(3));
}

/// A job that must not run at all is refused: zero attempts cannot be.
pub async fn zero_attempts_are_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let refused = client.start(greet("Ada")).max_attempts(0).await;
    assert_error!(
        refused,
        Error::Invalid {
            what: "max_attempts",
            ..
        }
    );
    let steps = [Step::new(greet("Ada")), Step::new(greet("Eve")).max_attempts(0)];
    assert_item_refused!(
        client.start_many(steps).await,
        1,
        Error::Invalid {
            what: "max_attempts",
            ..
        }
    );
    assert_eq!(chain_count(&client).await, 0);
}

/// An input that cannot be written as JSON is refused with its type, and nothing is started. (VC4)
pub async fn an_input_that_is_no_json_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let refused = client
        .start(Puzzle {
            odd: super::jobs::odd(),
        })
        .await;
    assert_error!(
        refused,
        Error::Unencodable { type_name, part: "input", .. } if type_name.as_str() == Puzzle::NAME
    );
    let batch = [
        Puzzle::default(),
        Puzzle {
            odd: super::jobs::odd(),
        },
    ];
    assert_item_refused!(client.start_many(batch).await, 1, Error::Unencodable { .. });
    assert_eq!(chain_count(&client).await, 0);
}

struct Traced;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

impl ObservabilityAdapter for Traced {
    fn creation_span(&self, _: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        Some(Box::new(Self))
    }
}

impl CommitSpan for Traced {
    fn trace_context(&self) -> Option<String> {
        Some(TRACE.to_owned())
    }
}

/// The trace context of whoever starts or continues a chain is stored with each job.
pub async fn the_trace_context_is_stored<F: PairFixture>(fixture: F) {
    let state = fixture.state().await;
    let notify = fixture.notify().await;
    let client = Client::builder(state).notify(notify).observability(Traced).build();
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let many = client.start_many([greet("Ada")]).await.expect("they start");
    assert_eq!(chain(&client, &started).await.trace_context.as_deref(), Some(TRACE));
    assert_eq!(chain(&client, &many[0]).await.trace_context.as_deref(), Some(TRACE));
    run_all(&client).await;
    let jobs = client.list_chain_jobs(&started).await.expect("jobs can be listed");
    assert_eq!(jobs.items.len(), 3);
    for job in jobs.items {
        assert_eq!(job.trace_context.as_deref(), Some(TRACE), "job {}", job.chain_index);
    }
}
