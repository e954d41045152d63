//! The workers themselves: a task each, made when there is work for it, that lives as long as the set.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::__task::spawn_in;
use crate::adapter::StateAdapter;
use crate::worker::attempt::behind::Behind;
use crate::worker::attempt::executor::{Attempt, run_ahead, run_attempt};
use crate::worker::context::Runtime;
use crate::worker::dispatch::local_queue::{Member, Taken};

/// How many jobs a worker runs that have nothing to wait for, and for how long, before it lets others on its thread go
/// on: among them the settler.
const JOBS_IN_A_ROW: u32 = 32;
const TIME_IN_A_ROW: Duration = Duration::from_micros(500);

/// Makes workers, runs odd jobs, and sends away those who wait too long in line. All tasks end with it.
pub(crate) async fn crew_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let line = &runtime.line;
    let mut tasks = JoinSet::new();
    let mut look_at: Option<Instant> = None;
    let mut stopped = false;
    loop {
        while tasks.try_join_next().is_some() {}
        for job in runtime.take_odd_jobs() {
            spawn_in(&mut tasks, job.run(Arc::clone(&runtime)));
        }
        while let Some(member) = line.join() {
            spawn_in(&mut tasks, work(Arc::clone(&runtime), member));
        }
        look_at = look_at.or_else(|| line.look_first());
        let look = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now));
        tokio::select! {
            biased;
            () = runtime.quit.cancelled() => return,
            () = runtime.stop.cancelled(), if !stopped => {
                stopped = true;
                // Claimed too late: it has not begun, so it goes back as it was.
                give_back(&runtime, line.close());
            }
            () = line.crew_is_needed() => {}
            () = look, if look_at.is_some() => {
                // Claimed too far ahead.
                give_back(&runtime, line.take_impatient(runtime.health.is_degraded()));
                look_at = line.look_again();
            }
        }
    }
}

fn give_back<S: StateAdapter>(runtime: &Arc<Runtime<S>>, attempts: Vec<Attempt<S>>) {
    for attempt in attempts {
        // Unless it was lost while it waited: then it is somebody else's.
        if !attempt.is_aborted() {
            Behind::give_back(runtime, attempt);
        }
    }
}

/// A worker: runs one job after the other.
async fn work<S: StateAdapter>(runtime: Arc<Runtime<S>>, mut member: Member<Attempt<S>>) {
    let (mut row, mut row_began) = (0, Instant::now());
    loop {
        let Taken { job, since, woke } = member.next().await;
        if woke {
            make_way().await;
        }
        if job.is_aborted() {
            // Lost while it waited: somebody else has it, and it would run for nothing.
            continue;
        }
        if runtime.stop.is_cancelled() {
            Behind::give_back(&runtime, job);
            continue;
        }
        let woke = if runtime.line.strict() {
            let next = run_attempt(&runtime, job, since).await.next;
            runtime.line_up(next.into_iter().collect());
            false
        } else {
            run_ahead(&runtime, job, since).await
        };
        row += 1;
        if woke || row >= JOBS_IN_A_ROW || since.saturating_duration_since(row_began) >= TIME_IN_A_ROW {
            make_way().await;
            (row, row_began) = (0, Instant::now());
        }
    }
}

/// Lets others on this thread go on. Whoever was just woken may be next on it and nowhere else, and what the worker
/// runs next may block it: nobody else's jobs may wait for that. `yield_now` would keep the worker itself to this thread.
async fn make_way() {
    let mut asked = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::Client;
    use crate::memory::{Attempt, MemoryState};
    use crate::worker::dispatch::local_queue::Bounds;

    #[derive(serde::Serialize, serde::Deserialize)]
    enum Do {
        /// Waits, and keeps its worker.
        Wait,
        Nothing,
        /// Blocks its thread.
        Block,
    }

    #[derive(crate::JobTypes)]
    #[job(crate = crate)]
    enum Jobs {
        #[job(entry, output = ())]
        Do(Do),
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_worker_has_left_behind_is_written_while_its_next_job_blocks_the_thread() {
        let client = Client::new(MemoryState::new());
        let (unblock, blocked) = mpsc::channel::<()>();
        let (go_on, waiting) = oneshot::channel::<()>();
        let (blocked, waiting) = (Mutex::new(blocked), Mutex::new(Some(waiting)));
        let chains = client.start_many([Do::Wait, Do::Nothing, Do::Block]).await.unwrap();
        let workers = client
            .worker()
            .concurrency(2)
            .process(move |job: Attempt<Do>| {
                let waiting = match *job {
                    Do::Wait => waiting.lock().unwrap().take(),
                    Do::Nothing => None,
                    Do::Block => {
                        let patience = Duration::from_secs(60);
                        blocked
                            .lock()
                            .unwrap()
                            .recv_timeout(patience)
                            .expect("nobody could go on");
                        None
                    }
                };
                async move {
                    if let Some(waiting) = waiting {
                        let _ = waiting.await;
                    }
                    job.finish(())
                }
            })
            .start()
            .await
            .unwrap();
        // One worker waits, so the other one has the rest.
        client.wait(chains[1].chain()).await.unwrap();
        unblock.send(()).unwrap();
        go_on.send(()).unwrap();
        for chain in &chains {
            client.wait(chain.chain()).await.unwrap();
        }
        workers.stop().await;
    }

    #[tokio::test]
    async fn a_single_worker_whose_end_waits_for_a_lock_leaves_its_next_job_to_others() {
        let client = Client::new(MemoryState::new());
        let chains = client.start_many([Do::Wait, Do::Nothing]).await.unwrap();
        let (begun, has_begun) = oneshot::channel::<()>();
        let (go_on, waiting) = oneshot::channel::<()>();
        let signals = Mutex::new(Some((begun, waiting)));
        let single = |signals: Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>| {
            client.worker().concurrency(1).process(move |job: Attempt<Do>| {
                let signals = match *job {
                    Do::Wait => signals.lock().unwrap().take(),
                    Do::Nothing | Do::Block => None,
                };
                async move {
                    if let Some((begun, waiting)) = signals {
                        let _ = begun.send(());
                        let _ = waiting.await;
                    }
                    job.finish(())
                }
            })
        };
        let held_up = single(signals).start().await.unwrap();
        has_begun.await.unwrap();
        // Another transaction has the chain locked, so the end of its job cannot be written.
        let mut tx = client.begin().await.unwrap();
        let _locked = client.open::<Do>(chains[0].chain()).within(&mut tx).await.unwrap();
        go_on.send(()).unwrap();
        // The next one is claimed meanwhile.
        while client.get_chain_record(chains[1].id()).await.unwrap().unwrap().status != crate::JobStatus::Running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let idle = single(Mutex::new(None)).start().await.unwrap();
        client.wait(chains[1].chain()).await.unwrap();
        tx.rollback().await.unwrap();
        client.wait(chains[0].chain()).await.unwrap();
        held_up.stop().await;
        idle.stop().await;
    }

    #[tokio::test]
    async fn what_waits_in_line_or_for_the_settler_does_not_keep_the_rest() {
        let client = Client::new(MemoryState::new());
        client.start_many([Do::Nothing, Do::Nothing]).await.unwrap();
        let worker = client.worker().process(|job: Attempt<Do>| async { job.finish(()) });
        let runtime = Arc::new(worker.build().unwrap());
        let fence = client.entropy().fence();
        let claimed = runtime.claim(2, Bounds::NONE, fence).await.unwrap();
        let mut attempts = super::Attempt::all(&runtime, claimed.jobs, Instant::now(), 1);
        Behind::give_back(&runtime, attempts.pop().unwrap());
        runtime.line_up(attempts);
        assert_eq!(runtime.flights.count(), 2);
        let common = Arc::downgrade(&runtime.common);
        drop(runtime);
        assert!(common.upgrade().is_none(), "workers that are dropped are gone");
    }

    struct PanicsInItsDrop;

    impl Drop for PanicsInItsDrop {
        fn drop(&mut self) {
            panic!("in its drop");
        }
    }

    #[derive(Debug)]
    struct PanicsInItsText;

    impl std::fmt::Display for PanicsInItsText {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("in its text");
        }
    }

    impl std::error::Error for PanicsInItsText {}

    /// All code of the user's that a worker runs may panic: the attempt has failed, then and there.
    #[tokio::test]
    async fn what_is_dropped_and_what_is_reported_may_panic() {
        let client = Client::new(MemoryState::new());
        let chains = client.start_many([Do::Wait, Do::Nothing]).await.unwrap();
        let workers = client
            .worker()
            .concurrency(2)
            .retry(crate::RetryPolicy::new().max_attempts(1))
            .timeout(Duration::from_millis(20))
            .process(|job: Attempt<Do>| async move {
                if let Do::Wait = *job {
                    let _guard = PanicsInItsDrop;
                    std::future::pending::<()>().await;
                }
                Err(crate::JobError::from(PanicsInItsText))
            })
            .start()
            .await
            .unwrap();
        for (chain, why) in chains.iter().zip(["in its drop", "in its text"]) {
            let error = client.wait(chain.chain()).await.unwrap_err();
            assert!(matches!(error, crate::Error::ChainDead { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        workers.stop().await;
    }
}
