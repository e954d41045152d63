//! Random verbs in random transactions; after each, the indexes must say what the rows say, and what was rolled back
//! must be as it was.

use std::collections::BTreeMap;

use super::super::transaction::{MemoryConnection, MemoryTransaction};
use super::*;
use crate::Schedule;
use crate::deduplication::Deduplication;

const TYPES: [&str; 3] = ["a", "b", "c"];

struct Run {
    random: fastrand::Rng,
    state: MemoryState,
    /// Each of several concurrent runs makes ids of its own, and picks among those of all.
    lane: u128,
    lanes: u128,
    last: u128,
    running: BTreeMap<JobId, Fence>,
}

impl Run {
    fn any(&mut self) -> JobId {
        let lane = self.random.u128(..self.lanes);
        job_id(lane << 32 | self.random.u128(1..=self.last.max(1)))
    }

    fn new_job(&mut self) -> NewJob {
        self.last += 1;
        let name = TYPES[self.random.usize(..TYPES.len())];
        let mut job = NewJob::new(job_id(self.lane << 32 | self.last), name, Payload::from_text("1"));
        job.priority = self.random.i16(-2..3);
        if self.random.u8(..3) == 0 {
            job.schedule = Schedule::After(Duration::from_secs(self.random.u64(..100)));
        }
        for _ in 0..self.random.usize(..3) {
            job.blockers.push(self.any().as_chain());
        }
        job
    }

    fn outcome(&mut self) -> Outcome {
        let schedule = Schedule::After(Duration::from_secs(self.random.u64(..20)));
        let error = "failed".to_owned();
        match self.random.u8(..8) {
            0..3 => Outcome::Finish {
                output: Payload::from_text("2"),
            },
            3..5 => Outcome::Continue {
                next: Box::new(self.new_job()),
            },
            5 => Outcome::Retry { schedule, error },
            6 => Outcome::Bury { error },
            _ if self.random.bool() => Outcome::Release,
            _ => Outcome::Snooze { schedule },
        }
    }

    async fn verb(&mut self, within: Option<&mut MemoryConnection>) -> Result<(), StateError> {
        let state = self.state.clone();
        match self.random.u8(..10) {
            0..4 => {
                let mut chains = Vec::new();
                for _ in 0..self.random.usize(1..4) {
                    let mut chain = NewChain::new(self.new_job());
                    if self.random.bool() {
                        let key = self.random.u8(..4).to_string();
                        chain.deduplication = Some(Deduplication::while_open(key));
                    }
                    chains.push(chain);
                }
                state.create_chains(within, &chains).await.map(drop)
            }
            4..7 => {
                let mut settlements = Vec::new();
                for (job, fence) in self.running.clone() {
                    if self.random.bool() {
                        let authority = Authority::Fence {
                            fence,
                            worker: WorkerId::new("w"),
                        };
                        let outcome = self.outcome();
                        settlements.push(Settlement {
                            job,
                            authority,
                            outcome,
                        });
                    }
                }
                state.settle_jobs(within, &settlements).await.map(drop)
            }
            7 => {
                let chain = self.any().as_chain();
                state.cancel_chains(within, &[chain]).await.map(drop)
            }
            8 => {
                let chain = self.any().as_chain();
                state.retry_chains(within, &[chain]).await.map(drop)
            }
            _ if self.random.bool() => {
                let job = self.any();
                state.trigger_jobs(within, &[job]).await.map(drop)
            }
            _ => {
                let delete = DeleteChains::new(vec![self.any().as_chain()], self.random.bool());
                state.delete_chains(within, &delete).await.map(drop)
            }
        }
    }

    async fn by_itself(&mut self) {
        match self.random.u8(..6) {
            0..3 => {
                let number = 1_000_000 + self.random.u128(..1 << 60);
                let claimed = claim_types(&self.state, &TYPES, self.random.usize(1..5), number).await;
                let jobs = claimed.jobs.iter();
                self.running.extend(jobs.map(|claimed| (claimed.job.id, fence(number))));
            }
            3 => self.state.clock().advance(Duration::from_secs(self.random.u64(..60))),
            4 => {
                let types = TYPES.map(|name| ReapType::new(name, RetryPolicy::new().max_attempts(3), LEASE));
                let reap = ReapLeases::new(types.to_vec(), 3, Vec::new());
                self.state.reap_leases(&reap).await.unwrap();
            }
            _ => {
                let now = self.state.clock().now();
                let back = Duration::from_secs(self.random.u64(..30));
                self.state.clock().set(now.saturating_sub(back));
            }
        }
    }

    async fn snapshot(&self, within: Option<&mut MemoryConnection>) -> (Vec<JobRecord>, Vec<crate::ChainRecord>) {
        let (mut jobs, mut chains) = (JobQuery::default(), ChainQuery::default());
        (jobs.limit, chains.limit) = (usize::MAX, usize::MAX);
        match within {
            None => (
                self.state.list_jobs(None, &jobs).await.unwrap(),
                self.state.list_chains(None, &chains).await.unwrap(),
            ),
            Some(connection) => (
                self.state.list_jobs(Some(&mut *connection), &jobs).await.unwrap(),
                self.state.list_chains(Some(connection), &chains).await.unwrap(),
            ),
        }
    }

    async fn in_transaction(&mut self) {
        let before = self.snapshot(None).await;
        let mut transaction: MemoryTransaction = self.state.begin().await.unwrap();
        for _ in 0..self.random.usize(1..5) {
            self.verb(Some(&mut transaction)).await.unwrap();
        }
        if self.random.bool() {
            let inside = self.snapshot(Some(&mut transaction)).await;
            self.state.savepoint(&mut transaction, 1).await.unwrap();
            self.verb(Some(&mut transaction)).await.unwrap();
            self.state.rollback_to_savepoint(&mut transaction, 1).await.unwrap();
            assert_eq!(self.snapshot(Some(&mut transaction)).await, inside);
        }
        assert_eq!(self.snapshot(None).await, before);
        if self.random.bool() {
            let inside = self.snapshot(Some(&mut transaction)).await;
            self.state.commit(transaction).await.unwrap();
            assert_eq!(self.snapshot(None).await, inside);
        } else {
            drop(transaction);
            assert_eq!(self.snapshot(None).await, before);
        }
    }
}

impl Run {
    fn new(seed: u64, state: MemoryState, lane: u128, lanes: u128) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            state,
            lane,
            lanes,
            last: 0,
            running: BTreeMap::new(),
        }
    }

    /// A transaction among others: it may have to wait, and may be told to give way.
    async fn among_others(&mut self) {
        let mut transaction = self.state.begin().await.unwrap();
        for _ in 0..self.random.usize(1..4) {
            tokio::task::yield_now().await;
            if let Err(error) = self.verb(Some(&mut transaction)).await {
                assert_eq!(error.kind(), crate::StateErrorKind::Conflict);
                return;
            }
        }
        if self.random.bool() {
            self.state.commit(transaction).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_transactions_never_hang_nor_leave_a_mess() {
    for seed in 0..10 {
        let state = state();
        let run = |lane: u128| {
            let mut run = Run::new(seed * 10 + lane as u64, state.clone(), lane, 4);
            async move {
                for _ in 0..100 {
                    match run.random.u8(..5) {
                        0..2 => run.among_others().await,
                        2 => run.verb(None).await.unwrap(),
                        _ => run.by_itself().await,
                    }
                }
            }
        };
        let tasks: Vec<_> = (0..4).map(|lane| tokio::spawn(run(lane))).collect();
        for task in tasks {
            let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
            ended.expect("a task hangs").unwrap();
        }
        let inner = state.lock();
        inner.store.check();
        assert!(inner.locks.is_empty());
        assert_eq!(inner.locks.waiting(), 0);
    }
}

#[tokio::test]
async fn indexes_say_what_the_rows_say() {
    for seed in 0..60 {
        let mut run = Run::new(seed, state(), 0, 1);
        for _ in 0..120 {
            match run.random.u8(..4) {
                0 => run.in_transaction().await,
                1 => run.verb(None).await.unwrap(),
                _ => run.by_itself().await,
            }
            run.state.lock().store.check();
        }
        assert!(run.state.lock().locks.is_empty(), "seed {seed}");
    }
}
