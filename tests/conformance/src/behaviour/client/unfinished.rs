//! Futures that are dropped before they are complete, at every point at which they can be: what they were about happens
//! entirely or not at all, whatever the caller does with the transaction afterwards.

use queuert::adapter::StateAdapter;
use queuert::{
    ChainId, Client, Error, JobId, JobStatus, JobType as _, Transaction, TransactionFault, TransactionScope,
};

use super::assert_error;
use super::jobs::{AfterOne, Count, First, Greet, Second, greet};
use super::probe::{chain_count, job_count, own_id, status, unknown_chain};
use crate::behaviour::PairFixture;
use crate::cut::{MANY, cut};

/// What a case does in a transaction, again and again, each time on chains of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    StartBlocked,
    StartMany,
    StartWithKey,
    Cancel,
    Retry,
    Trigger,
    Delete,
    Finish,
    Continue,
}

pub(super) const VERBS: [Verb; 9] = [
    Verb::StartBlocked,
    Verb::StartMany,
    Verb::StartWithKey,
    Verb::Cancel,
    Verb::Retry,
    Verb::Trigger,
    Verb::Delete,
    Verb::Finish,
    Verb::Continue,
];

/// More than a store writes in one statement.
const BATCH: u32 = 1_100;

/// Something that a verb is done to.
pub(super) struct Stage {
    verb: Verb,
    /// The round, for ids of its own.
    round: u32,
    /// The chain that the verb changes, or has as blocker.
    chain: ChainId,
    waiting: Option<ChainId>,
    before: Vec<JobStatus>,
}

impl Stage {
    pub(super) async fn set<S: StateAdapter>(client: &Client<S>, verb: Verb, round: u32) -> Self {
        let (chain, waiting) = match verb {
            Verb::Continue => {
                let started = client.start(First { number: round }).await.expect("it starts");
                (started.id(), None)
            }
            Verb::Finish => {
                let started = client.start(greet("Ada")).await.expect("it starts");
                let waiting = client.start(AfterOne.blocked_by(&started)).await.expect("it starts");
                (started.id(), Some(waiting.id()))
            }
            Verb::Trigger => {
                let later = client.start(greet("Ada")).delay(std::time::Duration::from_secs(3_600));
                (later.await.expect("it starts").id(), None)
            }
            _ => (client.start(greet("Ada")).await.expect("it starts").id(), None),
        };
        if let Verb::Retry = verb {
            client.cancel(chain).await.expect("it is cancelled");
        }
        let mut stage = Self {
            verb,
            round,
            chain,
            waiting,
            before: Vec::new(),
        };
        stage.before = stage.statuses(client).await;
        stage
    }

    fn id(&self, number: u32) -> JobId {
        own_id(0x1_0000_0000 + u128::from(self.round) * 10_000 + u128::from(number))
    }

    async fn act<S: StateAdapter>(&self, client: &Client<S>, tx: &mut impl TransactionScope<S>) -> Result<(), Error> {
        let chain = queuert::ChainRef::<Greet>::new(self.chain);
        match self.verb {
            Verb::StartBlocked => {
                let start = client.start(AfterOne.blocked_by(chain)).id(self.id(0));
                start.within(tx).await.map(drop)
            }
            Verb::StartMany => {
                use queuert::IntoStep as _;
                let steps = (0..BATCH).map(|number| Count { number }.into_step().id(self.id(number)));
                client.start_many(steps).within(tx).await.map(drop)
            }
            Verb::StartWithKey => {
                let key = format!("key {}", self.round);
                let start = client.start(greet("Eve")).id(self.id(0)).deduplicate(key.as_str());
                start.within(tx).await.map(drop)
            }
            Verb::Cancel => client.cancel(self.chain).within(tx).await.map(drop),
            Verb::Retry => client.retry(self.chain).within(tx).await.map(drop),
            Verb::Trigger => client.trigger(self.chain.first_job()).within(tx).await.map(drop),
            Verb::Delete => client.delete(self.chain).within(tx).await.map(drop),
            Verb::Finish => {
                let open = client.open::<Greet>(chain).within(tx).await?;
                open.finish("by hand".to_owned()).await
            }
            Verb::Continue => {
                let chain = queuert::ChainRef::<First>::new(self.chain);
                let open = client.open::<First>(chain).within(tx).await?;
                open.continue_with(Second { number: 0 }).await.map(drop)
            }
        }
    }

    /// The same without a transaction of the caller's. Jobs are only ended within one.
    pub(super) async fn act_alone<S: StateAdapter>(&self, client: &Client<S>) -> Result<(), Error> {
        let chain = queuert::ChainRef::<Greet>::new(self.chain);
        match self.verb {
            Verb::StartBlocked => client.start(AfterOne.blocked_by(chain)).id(self.id(0)).await.map(drop),
            Verb::StartMany => {
                use queuert::IntoStep as _;
                let steps = (0..BATCH).map(|number| Count { number }.into_step().id(self.id(number)));
                client.start_many(steps).await.map(drop)
            }
            Verb::StartWithKey => {
                let key = format!("key {}", self.round);
                client
                    .start(greet("Eve"))
                    .id(self.id(0))
                    .deduplicate(key.as_str())
                    .await
                    .map(drop)
            }
            Verb::Cancel => client.cancel(self.chain).await.map(drop),
            Verb::Retry => client.retry(self.chain).await.map(drop),
            Verb::Trigger => client.trigger(self.chain.first_job()).await.map(drop),
            Verb::Delete => client.delete(self.chain).await.map(drop),
            Verb::Finish | Verb::Continue => Ok(()),
        }
    }

    /// Everything that the verb would change.
    async fn statuses<S: StateAdapter>(&self, client: &Client<S>) -> Vec<JobStatus> {
        let mut ids = vec![self.chain];
        ids.extend(self.waiting);
        let mut statuses = Vec::new();
        for id in ids {
            let found = client.get_chain_record(id).await.expect("chains can be read");
            statuses.extend(found.map(|chain| chain.status));
            let jobs = client.list_chain_jobs(id).await.expect("jobs can be listed");
            statuses.extend(jobs.items.iter().map(|job| job.status));
        }
        let new: Vec<JobId> = (0..BATCH).map(|number| self.id(number)).collect();
        for id in new.chunks(500) {
            let found = client.state().get_jobs(None, id).await.expect("jobs can be read");
            statuses.extend(found.iter().map(|job| job.status));
        }
        if let Verb::Trigger = self.verb {
            let job = client.get_job_record(self.chain.first_job()).await;
            let job = job.expect("jobs can be read").expect("the job exists");
            let due = job.scheduled_at.as_micros() - job.created_at.as_micros() < 1_000_000_000;
            statuses.push(if due { JobStatus::Running } else { JobStatus::Pending });
        }
        statuses
    }

    async fn assert_unchanged<S: StateAdapter>(&self, client: &Client<S>, polls: usize) {
        let now = self.statuses(client).await;
        assert_eq!(now, self.before, "{:?} after {polls} polls", self.verb);
        if let Verb::StartBlocked = self.verb {
            // Nothing holds the blocker: it can be deleted.
            client.delete(self.chain).await.expect("nobody waits for it");
        }
    }

    async fn assert_changed<S: StateAdapter>(&self, client: &Client<S>, polls: usize) {
        let now = self.statuses(client).await;
        assert_ne!(now, self.before, "{:?} after {polls} polls", self.verb);
        let new = now.len() - self.before.len().min(now.len());
        match self.verb {
            Verb::StartBlocked => {
                assert_eq!(now.last(), Some(&JobStatus::Blocked));
                let blockers = client.get_blockers(self.id(0)).await.expect("blockers can be read");
                assert_eq!(blockers.len(), 1, "after {polls} polls");
            }
            Verb::StartMany => assert_eq!(new, BATCH as usize, "after {polls} polls"),
            Verb::Finish => assert_eq!(
                status(client, self.waiting.expect("it is there")).await,
                JobStatus::Pending
            ),
            _ => {}
        }
    }
}

/// A transaction in which a request was dropped commits the request entirely, or refuses to commit and says why.
pub async fn a_dropped_request_is_committed_entirely_or_not_at_all<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for (verb, number) in VERBS.into_iter().zip(1..) {
        for polls in 1..MANY {
            let stage = Stage::set(&client, verb, number * 1_000 + polls as u32).await;
            let mut tx = client.begin().await.expect("a transaction opens");
            match cut(stage.act(&client, &mut tx), polls).await {
                Some(done) => {
                    done.expect("it is done");
                    tx.commit().await.expect("it commits");
                    stage.assert_changed(&client, polls).await;
                    break;
                }
                None => match tx.commit().await {
                    // It had not begun to write, or only the reading of what it has written was dropped.
                    Ok(()) if stage.statuses(&client).await != stage.before => {
                        stage.assert_changed(&client, polls).await;
                    }
                    Ok(()) | Err(Error::TransactionUnusable(TransactionFault::Interrupted)) => {
                        stage.assert_unchanged(&client, polls).await;
                    }
                    Err(other) => panic!("{verb:?} after {polls} polls: {other:?}"),
                },
            }
        }
    }
}

/// After a dropped request the transaction does nothing any more, and can be rolled back.
pub async fn a_transaction_with_a_dropped_request_can_be_rolled_back<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let stage = Stage::set(&client, Verb::StartBlocked, 1).await;
    for polls in 1..MANY {
        let mut tx = client.begin().await.expect("a transaction opens");
        if cut(stage.act(&client, &mut tx), polls).await.is_some() {
            tx.rollback().await.expect("it rolls back");
            break;
        }
        let interrupted = Error::TransactionUnusable(TransactionFault::Interrupted).to_string();
        let again = client.start(greet("Eve")).within(&mut tx).await;
        assert_eq!(again.expect_err("it is refused").to_string(), interrupted);
        let read = client.get_chain_record(stage.chain).within(&mut tx).await;
        assert_error!(read, Error::TransactionUnusable(_));
        let savepoint = tx.savepoint(async |_| Ok::<_, Error>(())).await;
        assert_error!(savepoint, Error::TransactionUnusable(_));
        tx.rollback().await.expect("it rolls back");
    }
    stage.assert_unchanged(&client, 0).await;
}

/// A rollback to a savepoint from before the dropped request undoes it, and the transaction goes on.
pub async fn a_savepoint_undoes_a_dropped_request<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for polls in 1..MANY {
        let stage = Stage::set(&client, Verb::StartBlocked, polls as u32).await;
        let before = chain_count(&client).await;
        let mut tx = client.begin().await.expect("a transaction opens");
        let failed = tx
            .savepoint(async |tx| {
                let _ = cut(stage.act(&client, tx), polls).await;
                Err::<(), _>(Error::ChainNotFound(unknown_chain()))
            })
            .await;
        assert_error!(failed, Error::ChainNotFound(_));
        // Also one that says that all is well.
        let mut complete = false;
        let ignored: Result<(), Error> = tx
            .savepoint(async |tx| {
                complete = cut(stage.act(&client, tx), polls).await.is_some();
                Ok(())
            })
            .await;
        let kept = match ignored {
            Ok(()) if complete => 1,
            Ok(()) => panic!("half of a request was kept after {polls} polls"),
            Err(Error::TransactionUnusable(TransactionFault::Interrupted)) if !complete => 0,
            Err(other) => panic!("{other:?} after {polls} polls"),
        };
        client.start(greet("Eve")).within(&mut tx).await.expect("it goes on");
        tx.commit().await.expect("it commits");
        assert_eq!(chain_count(&client).await, before + 1 + kept);
        if complete {
            return;
        }
    }
}

/// A savepoint whose future is dropped leaves a transaction that cannot be committed.
pub async fn a_dropped_savepoint_is_committed_entirely_or_not_at_all<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for polls in 1..MANY {
        let before = job_count(&client).await;
        let mut tx = client.begin().await.expect("a transaction opens");
        let work = tx.savepoint(async |tx: &mut Transaction<_>| {
            client.start(Count { number: 1 }).within(tx).await?;
            // Lets go once even where nothing else does.
            tokio::task::yield_now().await;
            client.start(Count { number: 2 }).within(tx).await?;
            Ok::<_, Error>(())
        });
        match cut(work, polls).await {
            Some(done) => {
                done.expect("it is done");
                tx.commit().await.expect("it commits");
                assert_eq!(job_count(&client).await, before + 2);
                return;
            }
            None => {
                let refused = tx.commit().await;
                assert_error!(refused, Error::TransactionUnusable(TransactionFault::Interrupted));
                assert_eq!(job_count(&client).await, before, "after {polls} polls");
            }
        }
    }
}

/// A savepoint that is dropped inside another one is undone with that.
pub async fn an_outer_savepoint_undoes_a_dropped_inner_one<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let outer = tx
        .savepoint(async |tx| {
            let inner = tx.savepoint(async |tx: &mut Transaction<_>| {
                client.start(Count { number: 1 }).within(tx).await?;
                std::future::pending::<Result<(), Error>>().await
            });
            let waited = tokio::time::timeout(fixture.patience() * 5, inner).await;
            assert!(waited.is_err(), "it waits for ever");
            client.start(Count { number: 2 }).within(tx).await.map(drop)
        })
        .await;
    assert_error!(outer, Error::TransactionUnusable(TransactionFault::Interrupted));
    client
        .start(Count { number: 3 })
        .within(&mut tx)
        .await
        .expect("it goes on");
    tx.commit().await.expect("it commits");
    assert_eq!(job_count(&client).await, 1);
}

/// A commit that is dropped has happened entirely or not at all.
pub async fn a_dropped_commit_happens_entirely_or_not_at_all<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for polls in 1..MANY {
        let before = job_count(&client).await;
        let mut tx = client.begin().await.expect("a transaction opens");
        let many = client.start_many((0..10).map(|number| Count { number }));
        many.within(&mut tx).await.expect("they start");
        let committed = cut(tx.commit(), polls).await;
        // The store may be at it still: a transaction that comes after it waits for its turn, or for nothing.
        let mut after = client.begin().await.expect("a transaction opens");
        client.start(greet("Ada")).within(&mut after).await.expect("it starts");
        after.rollback().await.expect("it rolls back");
        if let Some(committed) = committed {
            committed.expect("it commits");
            assert_eq!(job_count(&client).await, before + 10);
            return;
        }
        let now = job_count(&client).await - before;
        assert!(now == 0 || now == 10, "{now} of 10 after {polls} polls");
        // Whichever it was stays so: nothing of it is left to happen.
        if now == 0 {
            settle_down(&client, before).await;
        }
    }
}

/// Waits for a commit that is under way, if it is.
async fn settle_down<S: StateAdapter>(client: &Client<S>, before: usize) {
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        let now = job_count(client).await - before;
        assert!(now == 0 || now == 10, "{now} of 10");
        if now == 10 {
            return;
        }
    }
}

/// In a transaction that the caller commits without the library, a dropped request is undone: the commit keeps the caller's
/// own rows, and the request entirely or not at all.
pub async fn a_dropped_request_is_undone_in_a_foreign_transaction<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let markers = fixture.capabilities().markers;
    for (verb, number) in VERBS.into_iter().zip(1..) {
        for polls in 1..MANY {
            let stage = Stage::set(&client, verb, number * 1_000 + polls as u32).await;
            let marker = format!("{verb:?} {polls}");
            let mut own = client.state().begin().await.expect("a transaction opens");
            if markers {
                fixture.write_marker(&mut own, &marker).await;
            }
            let mut foreign = client.adopt(&mut own);
            let done = cut(stage.act(&client, &mut foreign), polls).await;
            drop(foreign.into_effects());
            let committed = client.state().commit(own).await;
            match &done {
                Some(done) => {
                    assert!(done.is_ok() && committed.is_ok(), "{verb:?}: {done:?}, {committed:?}");
                    stage.assert_changed(&client, polls).await;
                }
                // At the very end it may have happened.
                None if committed.is_ok() && stage.statuses(&client).await != stage.before => {
                    stage.assert_changed(&client, polls).await;
                }
                None => stage.assert_unchanged(&client, polls).await,
            }
            if markers {
                let kept = fixture.read_marker(client.state(), &marker).await;
                assert_eq!(kept, committed.is_ok(), "{verb:?} after {polls} polls");
            }
            if done.is_some() {
                break;
            }
        }
    }
}

/// After a dropped request the foreign transaction goes on.
pub async fn a_foreign_transaction_goes_on_after_a_dropped_request<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for polls in 1..MANY {
        let before = job_count(&client).await;
        let mut own = client.state().begin().await.expect("a transaction opens");
        let mut foreign = client.adopt(&mut own);
        let many = client.start_many((0..10).map(|number| Count { number }));
        let done = cut(many.within(&mut foreign), polls).await.is_some();
        let next = client.start(greet("Ada")).within(&mut foreign).await;
        drop(foreign);
        let committed = client.state().commit(own).await;
        let now = job_count(&client).await - before;
        match (next, committed) {
            (Ok(_), Ok(())) => assert!(now == 1 || now == 11, "{now} after {polls} polls"),
            // Dropped when it was about to be kept: the store refuses all.
            (_, Err(_)) => assert_eq!(now, 0, "after {polls} polls"),
            (Err(error), Ok(())) => panic!("{error:?} after {polls} polls"),
        }
        if done {
            assert_eq!(now, 11);
            return;
        }
    }
}
