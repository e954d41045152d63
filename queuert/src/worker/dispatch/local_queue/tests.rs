//! Who waits, who is called, and how much is claimed.

use super::*;
use futures_util::FutureExt;
use tokio::task::JoinSet;

impl Payloads for u32 {
    fn bytes(&self) -> usize {
        0
    }
}

/// A job of so many bytes.
#[derive(Debug, PartialEq, Eq)]
struct Heavy(usize);

impl Payloads for Heavy {
    fn bytes(&self) -> usize {
        self.0
    }
}

/// A worker that has a job.
async fn busy(line: &Arc<Line<u32>>) -> Member<u32> {
    assert!(line.push(vec![0], false).is_empty());
    let mut member = line.join().unwrap();
    member.next().await;
    member
}

#[tokio::test]
async fn what_waits_and_what_runs_is_not_asked_for_again() {
    let line = Arc::new(Line::new(3));
    assert_eq!(line.demand().await, 3);
    line.push(vec![1], false);
    assert_eq!(line.demand().await, 2);
    let mut member = line.join().unwrap();
    assert_eq!(member.next().await.job, 1);
    assert_eq!(line.demand().await, 2);
    assert!(member.next().now_or_never().is_none());
    assert_eq!(line.demand().await, 3);
}

#[tokio::test]
async fn workers_are_made_for_jobs_and_for_no_more_than_there_may_be() {
    let line = Arc::new(Line::new(2));
    assert!(line.join().is_none(), "there is nothing to do");
    line.push(vec![1, 2, 3], false);
    line.crew_is_needed().await;
    let (mut first, mut second) = (line.join().unwrap(), line.join().unwrap());
    assert!(line.join().is_none());
    assert_eq!(first.next().await.job, 1);
    assert_eq!(second.next().await.job, 2);
    drop(first);
    line.crew_is_needed().await;
    let mut third = line.join().unwrap();
    assert_eq!(third.next().await.job, 3, "a worker that is gone is replaced");
}

#[tokio::test]
async fn jobs_begin_in_the_order_in_which_they_lined_up() {
    let line = Arc::new(Line::new(2));
    line.push(vec![1, 2], false);
    line.push(vec![3, 4], false);
    let (mut first, mut second) = (line.join().unwrap(), line.join().unwrap());
    assert_eq!(second.next().await.job, 1);
    assert_eq!(second.next().await.job, 2);
    assert_eq!(first.next().await.job, 3);
    assert_eq!(second.next().await.job, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_are_called_until_every_job_has_one() {
    let line = Arc::new(Line::new(50));
    let begun = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for round in 1..=2 {
        line.push((0..50).collect(), false);
        while let Some(mut member) = line.join() {
            let (begun, mut stopped) = (Arc::clone(&begun), stopped.clone());
            tasks.spawn(async move {
                for round in 1..=2 {
                    member.next().await;
                    begun.fetch_add(1, Ordering::SeqCst);
                    // Nobody is done before all have begun.
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
    let line = Arc::new(Line::new(2));
    let mut members = [busy(&line).await, busy(&line).await];
    for member in &mut members {
        assert!(member.next().now_or_never().is_none());
    }
    line.push(vec![1], false);
    // The last one was called, and its task does not get to run. Another one is done with something.
    let [first, _second] = &mut members;
    line.push(vec![2], false);
    assert_eq!(first.next().await.job, 1);
    assert_eq!(first.next().await.job, 2);
}

#[tokio::test]
async fn a_single_worker_is_asked_for_once_and_has_its_job_until_that_is_written() {
    let line = Arc::new(Line::new(1));
    let mut member = busy(&line).await;
    let mut demand = Box::pin(line.demand());
    assert_eq!(demand.as_mut().now_or_never(), None);
    let ending = line.ending();
    assert_eq!(demand.await, 1, "who waits is told");
    line.push(vec![1], false);
    assert!(line.join().is_none(), "one worker has one job");
    assert_eq!(line.demand().now_or_never(), None, "it has been asked for");
    drop(ending);
    assert_eq!(member.next().await.job, 1);
    assert_eq!(line.demand().now_or_never(), None);
    drop(member);
    assert_eq!(line.demand().await, 1);
}

#[tokio::test]
async fn one_of_several_workers_is_free_when_its_processor_is_done() {
    let line = Arc::new(Line::new(2));
    let (mut first, _second) = (busy(&line).await, busy(&line).await);
    assert_eq!(line.demand().now_or_never(), None);
    let _ending = line.ending();
    assert!(first.next().now_or_never().is_none());
    assert_eq!(line.demand().await, 1);
    line.push(vec![1], false);
    assert_eq!(first.next().await.job, 1);
}

#[tokio::test]
async fn no_more_is_claimed_while_much_is_not_written_yet() {
    let line = Arc::new(Line::<u32>::new(2));
    let mut unwritten: Vec<_> = (0..IN_HAND).map(|_| line.ending()).collect();
    let mut demand = std::pin::pin!(line.demand());
    assert_eq!(demand.as_mut().now_or_never(), None);
    unwritten.pop();
    assert_eq!(demand.await, 1, "who waits is told");
}

#[tokio::test]
async fn a_claimer_that_waits_is_told_when_a_worker_is_free() {
    let line = Arc::new(Line::new(2));
    let (mut first, second) = (busy(&line).await, busy(&line).await);
    let waiting = tokio::spawn({
        let line = Arc::clone(&line);
        async move { line.demand().await }
    });
    tokio::task::yield_now().await;
    assert!(first.next().now_or_never().is_none());
    assert_eq!(waiting.await.unwrap(), 1);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn short_jobs_are_claimed_ahead_in_batches_that_are_refilled_at_half() {
    let line = Arc::new(Line::new(2));
    line.push((0..50).collect(), false);
    let mut member = line.join().unwrap();
    for _ in 0..50 {
        member.next().await;
    }
    assert!(member.next().now_or_never().is_none());
    let sent_at = Instant::now();
    tokio::time::advance(Duration::from_millis(1)).await;
    line.claimed(sent_at, 50, 0);
    assert_eq!(
        line.demand().await,
        102,
        "two idle workers, and twice what was begun in the last round"
    );
    line.push((0..102).collect(), false);
    assert_eq!(line.demand().now_or_never(), None);
    drop(line.take_if(|job| *job >= 51));
    assert_eq!(line.demand().now_or_never(), None);
    drop(line.take_if(|job| *job >= 50));
    assert_eq!(line.demand().await, 52);
}

#[tokio::test(start_paused = true)]
async fn a_claim_may_bring_a_job_for_each_idle_worker_and_what_is_left_of_the_bytes() {
    const LARGE: usize = BYTES_AHEAD / 4;
    let line = Arc::new(Line::new(2));
    let bounds = |at_least, bytes| Bounds { at_least, bytes };
    assert_eq!(line.bounds(), bounds(2, BYTES_AHEAD));
    // Many light jobs, so that many more are claimed ahead.
    line.push((0..1_000).map(|_| Heavy(1)).collect(), false);
    assert_eq!(line.bounds(), bounds(0, BYTES_AHEAD - 1_000), "all that waits counts");
    let mut member = line.join().unwrap();
    for _ in 0..1_000 {
        member.next().await;
    }
    assert_eq!(line.bounds(), bounds(1, BYTES_AHEAD), "one worker is busy");
    line.claimed(Instant::now(), 1_000, 1_000);
    line.push((0..3).map(|_| Heavy(LARGE)).collect(), false);
    assert_eq!(line.bounds(), bounds(0, LARGE));
    assert_eq!(line.demand().now_or_never(), None, "more than half of the bytes wait");
    member.next().await;
    assert!(line.demand().await > 1_000, "a claim is worth it again");
    assert_eq!(line.bounds(), bounds(0, 2 * LARGE));
    drop(line.take_if(|_| true));
    assert_eq!(line.bounds(), bounds(1, BYTES_AHEAD));
    line.push(vec![Heavy(2 * BYTES_AHEAD)], false);
    assert_eq!(line.bounds(), bounds(0, 0));
    line.close();
    assert_eq!(line.bounds(), bounds(1, BYTES_AHEAD));
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_for_a_worker_goes_back() {
    let line = Arc::new(Line::new(2));
    let _both = (busy(&line).await, busy(&line).await);
    line.push(vec![1], false);
    line.crew_is_needed().await;
    let look_at = line.look_first().unwrap();
    tokio::time::advance(PATIENCE / 2).await;
    line.push(vec![2], false);
    assert!(line.take_impatient(false).is_empty(), "not yet");
    tokio::time::sleep_until(look_at).await;
    assert_eq!(line.take_impatient(false), [1]);
    tokio::time::sleep_until(line.look_again().unwrap()).await;
    assert_eq!(line.take_impatient(false), [2]);
    assert_eq!(line.look_again(), None, "nobody waits any more");
    assert_eq!(line.look_first(), None);
    line.push(vec![3], false);
    line.crew_is_needed().await;
    assert!(line.look_first().is_some(), "and now somebody does");
    assert_eq!(line.demand().now_or_never(), None, "and the workers are still busy");
}

#[tokio::test(start_paused = true)]
async fn who_waits_with_everybody_stays_until_a_while_after() {
    let line = Arc::new(Line::new(2));
    let _both = (busy(&line).await, busy(&line).await);
    let begun = Instant::now();
    let away = || begun.elapsed() < 10 * PATIENCE;
    line.push(vec![1], away());
    let mut look_at = line.look_first();
    loop {
        tokio::time::sleep_until(look_at.unwrap()).await;
        if !line.take_impatient(away()).is_empty() {
            break;
        }
        look_at = line.look_again();
    }
    assert!(begun.elapsed() >= 11 * PATIENCE, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_single_worker_gives_its_next_job_back_once_if_its_last_end_takes_long_to_be_written() {
    let line = Arc::new(Line::new(1));
    let mut member = busy(&line).await;
    let ending = line.ending();
    assert_eq!(line.demand().await, 1);
    line.push(vec![1], false);
    tokio::time::sleep_until(line.look_first().unwrap()).await;
    assert_eq!(line.take_impatient(false), [1]);
    assert_eq!(line.demand().now_or_never(), None, "it claims no other meanwhile");
    drop(ending);
    assert!(member.next().now_or_never().is_none());
    assert_eq!(line.demand().await, 1, "and one when the end is written");
    line.push(vec![2], false);
    assert_eq!(member.next().await.job, 2);
    let _ending = line.ending();
    assert_eq!(line.demand().await, 1, "the next end is a new one");
}

#[tokio::test]
async fn who_waits_for_a_worker_when_the_process_stops_gets_none() {
    let line = Arc::new(Line::new(1));
    line.push(vec![1, 2], false);
    assert_eq!(line.close(), [1, 2]);
    assert_eq!(line.push(vec![3], false), [3]);
    assert!(line.join().is_none());
}
