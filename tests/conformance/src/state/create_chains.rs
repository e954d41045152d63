//! Starting chains.

use std::time::Duration;

use queuert::adapter::Refusal;
use queuert::{JobId, JobStatus, TypeName};

use crate::bench::{Bench, TICK};
use crate::draft::{Draft, draft};
use crate::fixture::StateFixture;
use crate::identity;

/// A chain has the id of its first job, supplied ids included. (S1, S23, S32, S34)
pub async fn a_chain_has_the_id_of_its_first_job<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let id = identity::job_id();
    let created = bench.create_one(draft("mail").with_id(id)).await.expect("a free id");
    assert_eq!(created.id, id.as_chain());
    assert_eq!(created.status, JobStatus::Pending);
    assert!(!created.deduplicated);
    let job = bench.job(id).await;
    assert_eq!((job.chain_id, job.chain_index), (id.as_chain(), 0));
    let chain = bench.chain(id.as_chain()).await;
    assert_eq!((chain.latest_job, chain.length), (id, 1));
}

/// A job reads back as it was written, and its chain shows the same. (S4, S15)
pub async fn a_created_job_reads_back_as_it_was_written<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mail = draft("mail")
        .input(r#"{"to":"x"}"#)
        .priority(-7)
        .max_attempts(3)
        .trace("00-aa-bb-01")
        .deduplicate("key");
    let chain = bench.start_as(mail).await;
    let job = bench.job(chain.first_job()).await;
    assert_eq!(job.type_name.as_str(), "mail");
    assert_eq!(job.chain_type.as_str(), "mail");
    assert_eq!(job.input.as_str(), r#"{"to":"x"}"#);
    assert_eq!(
        (job.status, job.priority, job.max_attempts),
        (JobStatus::Pending, -7, Some(3))
    );
    assert_eq!(job.trace_context.as_deref(), Some("00-aa-bb-01"));
    assert_eq!(job.deduplication_key.as_deref(), Some("key"));
    let chain = bench.chain(chain).await;
    assert_eq!((chain.type_name.as_str(), chain.latest_type.as_str()), ("mail", "mail"));
    assert_eq!((&chain.input, chain.created_at), (&job.input, job.created_at));
    assert_eq!(chain.trace_context.as_deref(), Some("00-aa-bb-01"));
    assert_eq!(chain.deduplication_key.as_deref(), Some("key"));
}

/// A new job has no attempt, no lease, no result and no error. (S5)
pub async fn a_new_job_has_no_history<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let job = bench.job(chain.first_job()).await;
    assert_eq!((job.attempt, job.claims, job.max_attempts), (0, 0, None));
    assert_eq!((job.output, job.completed_by, job.lease), (None, None, None));
    assert_eq!((job.started_at, job.ended_at, job.last_error), (None, None, None));
    assert_eq!((job.deduplication_key, job.trace_context), (None, None));
    assert_eq!(job.input.as_str(), "null", "a null input stays null");
    let chain = bench.chain(chain).await;
    assert_eq!((chain.output, chain.ended_at, chain.last_error), (None, None, None));
}

/// Payloads come back byte for byte: nobody looks inside. (S6, H25)
pub async fn payloads_come_back_byte_for_byte<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let text = r#"{ "z": [1, -0.0, 1e300, true, null, {}, []],  "a": "ünïcödé 🦀 \u0000 '%_\\", "z": 2 }"#;
    let chain = bench.start_as(draft("mail").input(text)).await;
    assert_eq!(bench.job(chain.first_job()).await.input.as_str(), text);
    assert_eq!(bench.chain(chain).await.input.as_str(), text);
    let attempt = bench.attempt("mail").await;
    assert_eq!(attempt.job.input.as_str(), text);
    bench.apply(&attempt, crate::draft::finish(text)).await;
    let output = bench.chain(chain).await.output.expect("the chain completed");
    assert_eq!(output.as_str(), text);
}

/// A payload that is no JSON is kept and handed out: its reader gets the typed error, not the store. (I17)
pub async fn a_payload_that_is_no_json_is_kept<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("mail").input("{ not json")).await;
    assert_eq!(bench.job(chain.first_job()).await.input.as_str(), "{ not json");
    assert_eq!(bench.attempt("mail").await.job.input.as_str(), "{ not json");
}

/// A large payload is kept whole.
pub async fn a_large_payload_is_kept_whole<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let text = format!("\"{}\"", "x".repeat(300_000));
    let chain = bench.start_as(draft("mail").input(&text)).await;
    assert!(
        bench.job(chain.first_job()).await.input.as_str() == text,
        "300 kB come back"
    );
}

/// The longest type name is accepted, and names are told apart byte for byte.
pub async fn type_names_are_exact_up_to_their_longest<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let longest = "n".repeat(TypeName::MAX_LENGTH);
    let shorter = "n".repeat(TypeName::MAX_LENGTH - 1);
    let chain = bench.start(&longest).await;
    bench.start("Mail").await;
    assert!(bench.claim(&[&shorter, "mail", "Mail "], 10).await.jobs.is_empty());
    let attempt = bench.attempt(&longest).await;
    assert_eq!(attempt.chain(), chain);
    assert_eq!(attempt.job.type_name.as_str(), longest);
    assert_eq!(bench.claim(&["Mail"], 10).await.jobs.len(), 1);
}

/// A batch comes back in the order of the request, each its own chain. (S3, S17)
pub async fn a_batch_comes_back_in_the_order_of_the_request<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut drafts: Vec<_> = (0..10).map(|index| draft(["a", "b", "c"][index % 3])).collect();
    drafts.reverse();
    let ids: Vec<_> = drafts.iter().map(|draft| draft.chain_id()).collect();
    let chains: Vec<_> = drafts.into_iter().map(|draft| draft.chain()).collect();
    let created = bench.create(&chains).await.expect("nothing is wrong with the batch");
    assert_eq!(created.iter().map(|chain| chain.id).collect::<Vec<_>>(), ids);
    assert!(
        created
            .iter()
            .all(|chain| chain.status == JobStatus::Pending && !chain.deduplicated)
    );
    assert_eq!(bench.chains(&ids).await.len(), 10);
}

/// An empty batch starts nothing and is no error. (S22)
pub async fn an_empty_batch_starts_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert_eq!(bench.create(&[]).await, Ok(Vec::new()));
    assert!(bench.list_chains(&super::list_chains::query()).await.is_empty());
}

/// An id that exists is refused, and the chain that has it is left alone. (H21)
pub async fn an_id_that_exists_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("mail").input("1")).await;
    let id = chain.first_job();
    let again = draft("other").with_id(id).input("2");
    assert_eq!(bench.create_one(again).await, Err(Refusal::IdTaken(id)));
    let job = bench.job(id).await;
    assert_eq!((job.type_name.as_str(), job.input.as_str()), ("mail", "1"));
}

/// The id of a later job of a chain is taken too, and so is that of a chain that ended. (H21)
pub async fn ids_of_later_and_ended_jobs_are_taken<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    bench.finish(&bench.attempt("second").await).await;
    for id in [next, chain.first_job()] {
        let refused = bench.create_one(draft("mail").with_id(id)).await;
        assert_eq!(refused, Err(Refusal::IdTaken(id)));
    }
    assert_eq!(bench.chain(chain).await.length, 2);
}

/// An id that is given twice in one call is refused. (H21)
pub async fn an_id_given_twice_in_a_batch_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let first = draft("mail");
    let id = first.id();
    let refused = bench.create(&[first.chain(), draft("mail").with_id(id).chain()]).await;
    assert_eq!(refused, Err(Refusal::IdTaken(id)));
    assert!(!bench.exists(id.as_chain()).await);
}

/// One refused item refuses the whole batch. (H20)
pub async fn a_refused_batch_starts_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let taken = bench.start("mail").await.first_job();
    let fresh = draft("mail");
    let id = fresh.chain_id();
    let refused = bench
        .create(&[fresh.chain(), draft("mail").with_id(taken).chain()])
        .await;
    assert_eq!(refused, Err(Refusal::IdTaken(taken)));
    assert!(!bench.exists(id).await);
    let unknown = identity::chain_id();
    let fresh = draft("mail");
    let (id, blocked) = (fresh.chain_id(), draft("mail").blocked_by(&[unknown]));
    let job = blocked.id();
    let refused = bench.create(&[fresh.chain(), blocked.chain()]).await;
    assert_eq!(refused, Err(Refusal::BlockerNotFound { job, chain: unknown }));
    assert!(!bench.exists(id).await);
}

/// So it does in batches of any size, however the store splits them, with and without a transaction. (H20)
pub async fn a_refused_batch_of_any_size_starts_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let taken = bench.start("mail").await.first_job();
    for size in [3, 10, 1_500] {
        let fresh: Vec<_> = (1..size).map(|_| draft("mail")).collect();
        let ids: Vec<JobId> = fresh.iter().map(Draft::id).collect();
        let mut chains: Vec<_> = fresh.into_iter().map(Draft::chain).collect();
        chains.push(draft("mail").with_id(taken).chain());
        assert_eq!(bench.create(&chains).await, Err(Refusal::IdTaken(taken)));
        assert_eq!(bench.jobs(&ids).await, [], "{size} chains");
        let mut open = bench.begin().await;
        assert_eq!(open.create(&chains).await, Err(Refusal::IdTaken(taken)));
        let beside = open.start("mail").await;
        open.commit().await;
        assert_eq!(bench.jobs(&ids).await, [], "{size} chains in a transaction");
        assert!(bench.exists(beside).await);
    }
}

/// A refusal is an answer, not a failure: the transaction goes on and its other work commits. (H20)
pub async fn a_refusal_leaves_the_transaction_usable<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    let before = open.start("mail").await;
    let refused = draft("mail").with_id(before.first_job());
    assert_eq!(
        open.create_one(refused).await,
        Err(Refusal::IdTaken(before.first_job()))
    );
    let unknown = draft("mail").blocked_by(&[identity::chain_id()]);
    let unknown_id = unknown.chain_id();
    assert!(open.create_one(unknown).await.is_err());
    let after = open.start("mail").await;
    open.commit().await;
    assert!(bench.exists(before).await && bench.exists(after).await);
    assert!(!bench.exists(unknown_id).await);
}

/// A delay counts from the write, by the store's clock. (S13, I12)
pub async fn a_delay_counts_from_the_write<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let delay = Duration::from_secs(5);
    let before = bench.now().await;
    let chain = bench.start_as(draft("mail").after(delay)).await;
    let after = bench.now().await;
    let job = bench.job(chain.first_job()).await;
    assert!(before <= job.created_at && job.created_at <= after);
    assert!(before.saturating_add(delay) <= job.scheduled_at);
    assert!(job.scheduled_at <= after.saturating_add(delay));
    assert_eq!(job.status, JobStatus::Pending);
}

/// A chosen time is kept to the microsecond. (S13)
pub async fn a_chosen_time_is_kept_to_the_microsecond<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let time = bench.now().await.saturating_add(Duration::from_micros(3_600_000_007));
    let chain = bench.start_as(draft("mail").at(time)).await;
    assert_eq!(bench.job(chain.first_job()).await.scheduled_at, time);
}

/// A time in the past means now: nothing overtakes by being dated back. (S14)
pub async fn a_time_in_the_past_means_now<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let before = bench.now().await;
    let past = before.saturating_sub(Duration::from_secs(3_600));
    let chain = bench.start_as(draft("mail").at(past)).await;
    let job = bench.job(chain.first_job()).await;
    assert!(job.scheduled_at >= before, "{} lies before {before}", job.scheduled_at);
    assert!(job.scheduled_at <= bench.now().await);
}

/// Times are the store's clock at the statement, not at the start of the transaction. (S16, H15, I12)
pub async fn times_are_those_of_the_statement<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    let early = open.start("mail").await;
    bench.elapse(TICK * 5).await;
    let late = open.start("mail").await;
    open.commit().await;
    let (early, late) = (bench.job(early.first_job()).await, bench.job(late.first_job()).await);
    assert!(late.created_at >= early.created_at.saturating_add(TICK * 5));
    assert!(late.scheduled_at >= early.scheduled_at.saturating_add(TICK * 5));
}
