//! The workers: a task for each, made when there is work for it, that lives as long as the set.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::__task::spawn_in;
use crate::adapter::StateAdapter;
use crate::worker::attempt::attempts::Attempts;
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::attempt::executor::execute;
use crate::worker::attempt::settler::give_back;
use crate::worker::dispatch::local_queue::{QueueWorker, Taken};
use crate::worker::dispatch::parts::Dispatch;

/// How many jobs a worker runs that have nothing to wait for before it lets other tasks on its thread run, among them the
/// settler.
const JOBS_IN_A_ROW: u32 = 32;
/// For how long it does so.
const TIME_IN_A_ROW: Duration = Duration::from_micros(500);

/// Makes workers, and gives back jobs that wait too long in the local queue. All workers end with it.
pub(crate) async fn run_pool<S: StateAdapter>(dispatch: Arc<Dispatch<S>>) {
    let (queue, attempts) = (&dispatch.queue, &*dispatch.attempts);
    let context = &*attempts.context;
    let mut workers = JoinSet::new();
    let mut look_at: Option<Instant> = None;
    let mut stopped = false;
    loop {
        while workers.try_join_next().is_some() {}
        while let Some(worker) = queue.add_worker() {
            spawn_in(&mut workers, work(Arc::clone(&dispatch), worker));
        }
        look_at = look_at.or_else(|| queue.first_look());
        let look = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now));
        tokio::select! {
            biased;
            () = context.quit.cancelled() => return,
            () = context.stop.cancelled(), if !stopped => {
                stopped = true;
                // No worker has begun these jobs, so they go back as they were.
                give_back_all(attempts, queue.close());
            }
            () = queue.pool_is_needed() => {}
            () = look, if look_at.is_some() => {
                // These were claimed too far ahead.
                give_back_all(attempts, queue.take_overdue(context.health.is_degraded()));
                look_at = queue.next_look();
            }
        }
    }
}

fn give_back_all<S: StateAdapter>(attempts: &Attempts<S>, claimed: Vec<ClaimedAttempt<S>>) {
    for attempt in claimed {
        // An attempt that was aborted while it waited has lost its job.
        if !attempt.is_aborted() {
            give_back(attempts, attempt, None);
        }
    }
}

/// A worker: runs one job after the other.
async fn work<S: StateAdapter>(dispatch: Arc<Dispatch<S>>, mut worker: QueueWorker<ClaimedAttempt<S>>) {
    let attempts = &*dispatch.attempts;
    let (mut row, mut row_began) = (0, Instant::now());
    loop {
        let Taken { job, since, woke } = worker.next().await;
        if woke {
            let_others_run().await;
        }
        if job.is_aborted() {
            // The job was lost while it waited: another process has it, and it would run for nothing.
            continue;
        }
        if attempts.context.stop.is_cancelled() {
            give_back(attempts, job, None);
            continue;
        }
        let woke = if dispatch.queue.has_single_worker() {
            let (reply, ended) = oneshot::channel();
            execute(attempts, job, since, Some(reply)).await;
            // An error means that the settler has panicked: it starts again, and the lease decides about the job.
            let _ = ended.await;
            false
        } else {
            execute(attempts, job, since, None).await
        };
        row += 1;
        if woke || row >= JOBS_IN_A_ROW || since.saturating_duration_since(row_began) >= TIME_IN_A_ROW {
            let_others_run().await;
            (row, row_began) = (0, Instant::now());
        }
    }
}

/// Lets other tasks on this thread run. A task that was just woken may be queued on this thread only, and the job that the
/// worker runs next may block the thread: the other task must not wait for that. `yield_now` would keep the worker itself on
/// this thread.
async fn let_others_run() {
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

    use super::*;
    use crate::Client;
    use crate::memory::{Attempt, MemoryState};
    use crate::worker::attempt::settler;
    use crate::worker::dispatch::claimer::claim;
    use crate::worker::dispatch::local_queue::ClaimBounds;

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
    async fn the_end_of_a_job_is_written_while_the_next_job_of_its_worker_blocks_the_thread() {
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
                            .expect("no other task could go on");
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
    async fn jobs_that_wait_in_a_queue_do_not_keep_the_workers_alive() {
        let client = Client::new(MemoryState::new());
        client.start_many([Do::Nothing, Do::Nothing]).await.unwrap();
        let worker = client
            .worker()
            .process(|job: Attempt<Do>| async move { job.finish(()) });
        let dispatch = Dispatch::new(worker.build().unwrap());
        let attempts = &dispatch.attempts;
        let fence = client.entropy().fence();
        let claimed = claim(&dispatch, 2, ClaimBounds::NONE, fence).await.unwrap();
        let mut claimed = attempts.take_charge(claimed.jobs, Instant::now(), 1);
        give_back(attempts, claimed.pop().unwrap(), None);
        settler::queue(attempts, claimed);
        assert_eq!(attempts.in_flight.count(), 2);
        let environment = Arc::downgrade(&attempts.context.environment);
        drop(dispatch);
        assert!(environment.upgrade().is_none(), "workers that are dropped are gone");
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

    /// All code of the user that a worker runs may panic: the attempt has failed, and the worker goes on.
    #[tokio::test]
    async fn drops_and_error_texts_of_processors_may_panic() {
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
