//! Reading chains, jobs and blockers by id.

use queuert::{ChainRef, Error, JobStatus, JobType};

use super::assert_error;
use super::jobs::{AfterAll, AfterBoth, AfterOne, Count, First, Greet, Second, Third, greet, greeting, run_all};
use super::probe::{job_ids, own_id, unknown_chain};
use crate::behaviour::PairFixture;

/// A chain that does not exist is nothing; so is the id of a later job. (Q1)
pub async fn an_unknown_chain_is_nothing<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let nobody = ChainRef::<Greet>::new(unknown_chain());
    assert!(client.get_chain(nobody).await.expect("it can be asked").is_none());
    assert!(
        client
            .get_chain_record(unknown_chain())
            .await
            .expect("it can be asked")
            .is_none()
    );
    let started = client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let jobs = client.list_chain_jobs(&started).await.expect("jobs can be listed");
    let later = jobs.items[1].id.as_chain();
    assert!(client.get_chain_record(later).await.expect("it can be asked").is_none());
}

/// A chain reads with its type, or as a record without. (Q2, Q3, Q4)
pub async fn a_chain_reads_typed_and_untyped<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let typed = client
        .get_chain(&started)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!((typed.input.number, typed.output), (1, Some(3)));
    let record = client
        .get_chain_record(&started)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!(*typed.as_record(), record);
    assert_eq!((record.status, record.length), (JobStatus::Completed, 3));
    assert_eq!(
        (record.type_name.as_str(), record.latest_type.as_str()),
        (First::NAME, Third::NAME)
    );
    assert_eq!(record.input.as_str(), r#"{"number":1}"#);
    assert_eq!(record.output.expect("it has an output").as_str(), "3");
    assert!(record.ended_at.is_some_and(|at| at >= record.created_at));
}

/// A chain of another type than the caller said is refused. (Q5)
pub async fn a_chain_of_another_type_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let refused = client.get_chain(ChainRef::<Count>::new(started.id())).await;
    assert_error!(
        refused,
        Error::TypeMismatch { id, expected, actual }
            if id == started.id().first_job() && expected.as_str() == Count::NAME && actual.as_str() == Greet::NAME
    );
}

/// A job that does not exist is nothing. (Q6)
pub async fn an_unknown_job_is_nothing<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    assert!(
        client
            .get_job::<Greet>(own_id(1))
            .await
            .expect("it can be asked")
            .is_none()
    );
    assert!(
        client
            .get_job_record(own_id(1))
            .await
            .expect("it can be asked")
            .is_none()
    );
}

/// A job reads with its type, or as a record without. (Q7, Q8)
pub async fn a_job_reads_typed_and_untyped<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let jobs = client.list_chain_jobs(&started).await.expect("jobs can be listed");
    let second = jobs.items[1].id;
    let typed = client
        .get_job::<Second>(second)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!(typed.input, Second { number: 2 });
    assert_eq!((typed.chain_id, typed.chain_index), (started.id(), 1));
    let record = client
        .get_job_record(second)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!(typed.into_record(), record);
    assert_eq!(
        (record.chain_type.as_str(), record.status),
        (First::NAME, JobStatus::Completed)
    );
    assert!(record.completed_by.is_some() && record.output.is_none());
}

/// A job of another type than the caller said is refused. (Q9)
pub async fn a_job_of_another_type_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let first = started.id().first_job();
    let refused = client.get_job::<Count>(first).await;
    assert_error!(
        refused,
        Error::TypeMismatch { id, expected, actual }
            if id == first && expected.as_str() == Count::NAME && actual.as_str() == Greet::NAME
    );
}

/// A job that waits for nothing has no blockers; one that does not exist is not found. (Q38)
pub async fn a_job_may_have_no_blockers<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    assert!(
        client
            .get_blockers(started.id().first_job())
            .await
            .expect("it can be asked")
            .is_empty()
    );
    assert_error!(client.get_blockers(own_id(1)).await, Error::JobNotFound(id) if id == own_id(1));
}

/// Blockers come in the order in which they were given, and can be read with their types. (Q39, Q40, Q41)
pub async fn blockers_come_in_their_order<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let count = client.start(Count { number: 7 }).await.expect("it starts");
    let ada = client.start(greet("Ada")).await.expect("it starts");
    let both = client
        .start(AfterBoth.blocked_by((&ada, &count)))
        .await
        .expect("it starts");
    let mut blockers = client
        .get_blockers(both.id().first_job())
        .await
        .expect("they can be read");
    assert_eq!(
        blockers.iter().map(|chain| chain.id).collect::<Vec<_>>(),
        [ada.id(), count.id()]
    );
    let last = blockers.remove(1);
    assert_error!(last.clone().typed::<Greet>(), Error::TypeMismatch { .. });
    assert_eq!(last.typed::<Count>().expect("it is one").input.number, 7);
    let more = client.start_many(["a", "b", "c"].map(greet)).await.expect("they start");
    let order = [&more[2], &more[0], &more[1]];
    let all = client.start(AfterAll.blocked_by(order)).await.expect("it starts");
    let blockers = client
        .get_blockers(all.id().first_job())
        .await
        .expect("they can be read");
    let order = order.map(queuert::Started::id);
    assert_eq!(blockers.iter().map(|chain| chain.id).collect::<Vec<_>>(), order);
}

/// Blockers read as they are now. (Q42)
pub async fn blockers_read_as_they_are_now<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let job = waiting.id().first_job();
    let before = client.get_blockers(job).await.expect("they can be read");
    assert_eq!((before[0].status, &before[0].output), (JobStatus::Pending, &None));
    run_all(&client).await;
    let after = client.get_blockers(job).await.expect("they can be read").remove(0);
    assert_eq!(after.status, JobStatus::Completed);
    let chain = after.typed::<Greet>().expect("it is one");
    assert_eq!(chain.output.as_deref(), Some(greeting("Ada").as_str()));
}

/// A blocker and its dependant see each other, before and after. (Q50)
pub async fn both_sides_see_each_other<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let job = waiting.id().first_job();
    for expected in [JobStatus::Blocked, JobStatus::Completed] {
        let blockers = client.get_blockers(job).await.expect("they can be read");
        assert_eq!(blockers[0].id, blocker.id());
        let blocked = client.list_blocked_jobs(&blocker).await.expect("they can be listed");
        assert_eq!(job_ids(&blocked), [job]);
        assert_eq!(blocked.items[0].status, expected);
        run_all(&client).await;
    }
}

/// All reads agree on a chain of several jobs. (Q49)
pub async fn all_reads_agree<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let by_id = client
        .get_chain_record(&started)
        .await
        .expect("it can be read")
        .expect("it exists");
    assert_eq!(client.list_chains().await.expect("they can be listed").items, [by_id]);
    let in_chain = client
        .list_chain_jobs(&started)
        .await
        .expect("they can be listed")
        .items;
    let all = client
        .list_jobs()
        .oldest_first()
        .await
        .expect("they can be listed")
        .items;
    assert_eq!(in_chain, all);
    for job in all {
        assert_eq!(client.get_job_record(job.id).await.expect("it can be read"), Some(job));
    }
}

/// A reader outside sees nothing of an open transaction; one inside sees all of it.
pub async fn readers_outside_see_committed_work_only<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let started = client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    let job = started.id().first_job();
    let inside = client
        .get_chain(&started)
        .within(&mut tx)
        .await
        .expect("it can be read");
    assert_eq!(inside.expect("it exists").input, greet("Ada"));
    assert!(
        client
            .get_job::<Greet>(job)
            .within(&mut tx)
            .await
            .expect("it can be read")
            .is_some()
    );
    assert_eq!(
        client
            .list_chains()
            .within(&mut tx)
            .await
            .expect("they can be listed")
            .items
            .len(),
        1
    );
    assert_eq!(
        client
            .list_jobs()
            .within(&mut tx)
            .await
            .expect("they can be listed")
            .items
            .len(),
        1
    );
    assert!(client.get_chain(&started).await.expect("it can be read").is_none());
    assert!(client.get_job_record(job).await.expect("it can be read").is_none());
    assert!(client.list_chains().await.expect("they can be listed").items.is_empty());
    assert!(client.list_jobs().await.expect("they can be listed").items.is_empty());
    tx.commit().await.expect("it commits");
    assert!(client.get_chain(&started).await.expect("it can be read").is_some());
}
