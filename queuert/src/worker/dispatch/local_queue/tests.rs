//! Which jobs wait, which workers are called, and how many jobs are claimed.

use super::*;
use futures_util::FutureExt;
use tokio::task::JoinSet;

impl PayloadSize for u32 {
    fn payload_bytes(&self) -> usize {
        0
    }
}

/// A job of so many bytes.
#[derive(Debug, PartialEq, Eq)]
struct Heavy(usize);

impl PayloadSize for Heavy {
    fn payload_bytes(&self) -> usize {
        self.0
    }
}

/// A worker that has a job.
async fn busy(queue: &Arc<LocalQueue<u32>>) -> QueueWorker<u32> {
    assert!(queue.push(vec![0], false).is_empty());
    let mut worker = queue.add_worker().unwrap();
    worker.next().await;
    worker
}

#[tokio::test]
async fn jobs_that_wait_or_run_are_not_asked_for_again() {
    let queue = Arc::new(LocalQueue::new(3));
    assert_eq!(queue.demand().await, 3);
    queue.push(vec![1], false);
    assert_eq!(queue.demand().await, 2);
    let mut worker = queue.add_worker().unwrap();
    assert_eq!(worker.next().await.job, 1);
    assert_eq!(queue.demand().await, 2);
    assert!(worker.next().now_or_never().is_none());
    assert_eq!(queue.demand().await, 3);
}

#[tokio::test]
async fn workers_are_made_for_jobs_and_for_no_more_than_there_may_be() {
    let queue = Arc::new(LocalQueue::new(2));
    assert!(queue.add_worker().is_none(), "there is nothing to do");
    queue.push(vec![1, 2, 3], false);
    queue.pool_is_needed().await;
    let (mut first, mut second) = (queue.add_worker().unwrap(), queue.add_worker().unwrap());
    assert!(queue.add_worker().is_none());
    assert_eq!(first.next().await.job, 1);
    assert_eq!(second.next().await.job, 2);
    drop(first);
    queue.pool_is_needed().await;
    let mut third = queue.add_worker().unwrap();
    assert_eq!(third.next().await.job, 3, "a worker that is gone is replaced");
}

#[tokio::test]
async fn jobs_begin_in_the_order_in_which_they_were_queued() {
    let queue = Arc::new(LocalQueue::new(2));
    queue.push(vec![1, 2], false);
    queue.push(vec![3, 4], false);
    let (mut first, mut second) = (queue.add_worker().unwrap(), queue.add_worker().unwrap());
    assert_eq!(second.next().await.job, 1);
    assert_eq!(second.next().await.job, 2);
    assert_eq!(first.next().await.job, 3);
    assert_eq!(second.next().await.job, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_are_called_until_every_job_has_one() {
    let queue = Arc::new(LocalQueue::new(50));
    let begun = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for round in 1..=2 {
        queue.push((0..50).collect(), false);
        while let Some(mut worker) = queue.add_worker() {
            let (begun, mut stopped) = (Arc::clone(&begun), stopped.clone());
            tasks.spawn(async move {
                for round in 1..=2 {
                    worker.next().await;
                    begun.fetch_add(1, Ordering::SeqCst);
                    // No worker is done before all have begun.
                    while begun.load(Ordering::SeqCst) < 50 * round {
                        tokio::task::yield_now().await;
                    }
                }
                let _ = stopped.wait_for(|stop| *stop).await;
            });
        }
        while begun.load(Ordering::SeqCst) < 50 * round {
            tokio::task::yield_now().await;
        }
    }
    stop.send_replace(true);
    tasks.join_all().await;
}

#[tokio::test]
async fn a_worker_that_does_not_come_when_it_is_called_keeps_no_job_from_the_others() {
    let queue = Arc::new(LocalQueue::new(2));
    let mut workers = [busy(&queue).await, busy(&queue).await];
    for worker in &mut workers {
        assert!(worker.next().now_or_never().is_none());
    }
    queue.push(vec![1], false);
    // The last worker was called, and its task does not get to run. The other one asks for a job.
    let [first, _second] = &mut workers;
    queue.push(vec![2], false);
    assert_eq!(first.next().await.job, 1);
    assert_eq!(first.next().await.job, 2);
}

#[tokio::test]
async fn a_single_worker_is_asked_for_once_and_has_its_job_until_that_is_written() {
    let queue = Arc::new(LocalQueue::new(1));
    let mut worker = busy(&queue).await;
    let mut demand = Box::pin(queue.demand());
    assert_eq!(demand.as_mut().now_or_never(), None);
    queue.end_posted();
    assert_eq!(demand.await, 1, "the waiting claimer is woken");
    queue.push(vec![1], false);
    assert!(queue.add_worker().is_none(), "one worker has one job");
    assert_eq!(queue.demand().now_or_never(), None, "it has been asked for");
    queue.end_written();
    assert_eq!(worker.next().await.job, 1);
    assert_eq!(queue.demand().now_or_never(), None);
    drop(worker);
    assert_eq!(queue.demand().await, 1);
}

#[tokio::test]
async fn one_of_several_workers_is_free_when_its_processor_is_done() {
    let queue = Arc::new(LocalQueue::new(2));
    let (mut first, _second) = (busy(&queue).await, busy(&queue).await);
    assert_eq!(queue.demand().now_or_never(), None);
    queue.end_posted();
    assert!(first.next().now_or_never().is_none());
    assert_eq!(queue.demand().await, 1);
    queue.push(vec![1], false);
    assert_eq!(first.next().await.job, 1);
}

#[tokio::test]
async fn no_more_is_claimed_while_many_ends_are_not_written_yet() {
    let queue = Arc::new(LocalQueue::<u32>::new(2));
    (0..IN_HAND).for_each(|_| queue.end_posted());
    let mut demand = std::pin::pin!(queue.demand());
    assert_eq!(demand.as_mut().now_or_never(), None);
    queue.end_written();
    assert_eq!(demand.await, 1, "the waiting claimer is woken");
}

#[tokio::test]
async fn a_claimer_that_waits_is_told_when_a_worker_is_free() {
    let queue = Arc::new(LocalQueue::new(2));
    let (mut first, second) = (busy(&queue).await, busy(&queue).await);
    let waiting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.demand().await }
    });
    tokio::task::yield_now().await;
    assert!(first.next().now_or_never().is_none());
    assert_eq!(waiting.await.unwrap(), 1);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn short_jobs_are_claimed_ahead_in_batches_that_are_refilled_at_half() {
    let queue = Arc::new(LocalQueue::new(2));
    queue.push((0..50).collect(), false);
    let mut worker = queue.add_worker().unwrap();
    for _ in 0..50 {
        worker.next().await;
    }
    assert!(worker.next().now_or_never().is_none());
    let sent_at = Instant::now();
    tokio::time::advance(Duration::from_millis(1)).await;
    queue.claim_answered(sent_at, 50, 0);
    assert_eq!(
        queue.demand().await,
        102,
        "two idle workers, and twice what was begun in the last round"
    );
    queue.push((0..102).collect(), false);
    assert_eq!(queue.demand().now_or_never(), None);
    drop(queue.take_if(|job| *job >= 51));
    assert_eq!(queue.demand().now_or_never(), None);
    drop(queue.take_if(|job| *job >= 50));
    assert_eq!(queue.demand().await, 52);
}

#[tokio::test(start_paused = true)]
async fn a_claim_may_bring_a_job_for_each_idle_worker_and_what_is_left_of_the_bytes() {
    const LARGE: usize = BYTES_AHEAD / 4;
    let queue = Arc::new(LocalQueue::new(2));
    let bounds = |at_least, bytes| ClaimBounds { at_least, bytes };
    assert_eq!(queue.bounds(), bounds(2, BYTES_AHEAD));
    // Many small jobs, so that many more are claimed ahead.
    queue.push((0..1_000).map(|_| Heavy(1)).collect(), false);
    assert_eq!(queue.bounds(), bounds(0, BYTES_AHEAD - 1_000), "all waiting jobs count");
    let mut worker = queue.add_worker().unwrap();
    for _ in 0..1_000 {
        worker.next().await;
    }
    assert_eq!(queue.bounds(), bounds(1, BYTES_AHEAD), "one worker is busy");
    queue.claim_answered(Instant::now(), 1_000, 1_000);
    queue.push((0..3).map(|_| Heavy(LARGE)).collect(), false);
    assert_eq!(queue.bounds(), bounds(0, LARGE));
    assert_eq!(queue.demand().now_or_never(), None, "more than half of the bytes wait");
    worker.next().await;
    assert!(queue.demand().await > 1_000, "a claim is worth it again");
    assert_eq!(queue.bounds(), bounds(0, 2 * LARGE));
    drop(queue.take_if(|_| true));
    assert_eq!(queue.bounds(), bounds(1, BYTES_AHEAD));
    queue.push(vec![Heavy(2 * BYTES_AHEAD)], false);
    assert_eq!(queue.bounds(), bounds(0, 0));
    queue.close();
    assert_eq!(queue.bounds(), bounds(1, BYTES_AHEAD));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_too_long_for_a_worker_goes_back() {
    let queue = Arc::new(LocalQueue::new(2));
    let _both = (busy(&queue).await, busy(&queue).await);
    queue.push(vec![1], false);
    queue.pool_is_needed().await;
    let look_at = queue.first_look().unwrap();
    tokio::time::advance(LONGEST_WAIT / 2).await;
    queue.push(vec![2], false);
    assert!(queue.take_overdue(false).is_empty(), "not yet");
    tokio::time::sleep_until(look_at).await;
    assert_eq!(queue.take_overdue(false), [1]);
    tokio::time::sleep_until(queue.next_look().unwrap()).await;
    assert_eq!(queue.take_overdue(false), [2]);
    assert_eq!(queue.next_look(), None, "no job waits any more");
    assert_eq!(queue.first_look(), None);
    queue.push(vec![3], false);
    queue.pool_is_needed().await;
    assert!(queue.first_look().is_some(), "and now one does");
    assert_eq!(queue.demand().now_or_never(), None, "and the workers are still busy");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_while_the_store_is_down_stays_until_a_while_after() {
    let queue = Arc::new(LocalQueue::new(2));
    let _both = (busy(&queue).await, busy(&queue).await);
    let begun = Instant::now();
    let away = || begun.elapsed() < 10 * LONGEST_WAIT;
    queue.push(vec![1], away());
    let mut look_at = queue.first_look();
    loop {
        tokio::time::sleep_until(look_at.unwrap()).await;
        if !queue.take_overdue(away()).is_empty() {
            break;
        }
        look_at = queue.next_look();
    }
    assert!(begun.elapsed() >= 11 * LONGEST_WAIT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_single_worker_gives_its_next_job_back_once_if_its_last_end_takes_long_to_be_written() {
    let queue = Arc::new(LocalQueue::new(1));
    let mut worker = busy(&queue).await;
    queue.end_posted();
    assert_eq!(queue.demand().await, 1);
    queue.push(vec![1], false);
    tokio::time::sleep_until(queue.first_look().unwrap()).await;
    assert_eq!(queue.take_overdue(false), [1]);
    // The write of the job that goes back counts as an end, too.
    queue.end_posted();
    assert_eq!(queue.demand().now_or_never(), None, "it claims no other meanwhile");
    queue.end_written();
    assert_eq!(queue.demand().now_or_never(), None, "nor the same one again");
    queue.end_written();
    assert!(worker.next().now_or_never().is_none());
    assert_eq!(queue.demand().await, 1, "and one when the end is written");
    queue.push(vec![2], false);
    assert_eq!(worker.next().await.job, 2);
    queue.end_posted();
    assert_eq!(queue.demand().await, 1, "the next end is a new one");
}

#[tokio::test]
async fn a_job_that_waits_when_the_set_stops_gets_no_worker() {
    let queue = Arc::new(LocalQueue::new(1));
    queue.push(vec![1, 2], false);
    assert_eq!(queue.close(), [1, 2]);
    assert_eq!(queue.push(vec![3], false), [3]);
    assert!(queue.add_worker().is_none());
}
