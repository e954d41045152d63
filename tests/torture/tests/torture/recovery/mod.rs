//! What becomes of the jobs of processes that die, stop, or lose their connections. The tests that every store must pass
//! are written once, in this file.

mod postgres;
mod queue;
#[cfg(target_os = "linux")]
mod sqlite;

use queuert_torture::recovery::{RETRY, Role};
use tokio::time::Instant;

use queue::{Place, Queue};

/// Processes that are killed one after the other.
const VICTIMS: u32 = 3;

/// The time is printed and not asserted on: the lease lasts for ten minutes, so the test passes only if the store knew.
async fn killed<P: Place>(prefix: &str) -> Queue<P> {
    let queue = Queue::<P>::new().await;
    let mut victims = Vec::new();
    for n in 0..VICTIMS {
        let mut victim = queue.process_at(prefix, Role::Hangs).await;
        let chain = queue.start_in(n, &mut victim).await;
        victims.push((victim, chain));
    }
    let survivor = queue.process_at(prefix, Role::Finishes).await;
    for (victim, chain) in victims {
        let killed_at = Instant::now();
        victim.kill().await;
        let end = queue.end(&chain).await;
        println!(
            "{}{prefix}: run again {:?} after the kill",
            P::NAME,
            killed_at.elapsed()
        );
        assert_eq!((end.attempt, end.process), (2, survivor.id()));
        let error = end.error.expect("the death is stored");
        assert!(error.contains("died"), "{error}");
    }
    queue
}

/// A job that kills its process, and a supervisor that starts the process again at once: the attempts are as far apart as
/// after any other failure.
async fn a_job_that_kills_its_process_backs_off<P: Place>() {
    let queue = Queue::<P>::new().await;
    let chain = queue.start(1).await;
    let mut died_at = None;
    for attempt in 1..=4_u32 {
        queue.spawn("", Role::Aborts).dies().await;
        let jobs = queue.client.list_jobs().await.expect("the store answers").items;
        let job = jobs.first().expect("there is one job");
        assert_eq!(job.attempt, attempt, "one attempt for each process");
        let started_at = job.started_at.expect("it was claimed");
        let error = job.last_error.as_ref();
        if let Some(delay) = attempt.checked_sub(1).filter(|before| *before > 0) {
            let error = error.expect("the death is stored");
            assert!(error.message.contains("died"), "{}", error.message);
            let waited = started_at.saturating_duration_since(error.at);
            assert!(
                waited >= RETRY.delay_after(delay),
                "attempt {attempt} came after {waited:?}"
            );
            assert!(Some(error.at) > died_at, "each death is stored once");
        }
        died_at = Some(started_at);
    }
    let survivor = queue.process(Role::Finishes).await;
    let end = queue.end(&chain).await;
    assert_eq!((end.attempt, end.process), (5, survivor.id()));
}

/// The usual end of a process: it is killed, and started again some time later.
async fn a_process_that_is_started_again_finds_what_it_had<P: Place>() {
    let queue = Queue::<P>::new().await;
    let mut victim = queue.process(Role::Hangs).await;
    let chain = queue.start_in(1, &mut victim).await;
    victim.kill().await;
    let started_at = Instant::now();
    let again = queue.process(Role::Finishes).await;
    let end = queue.end(&chain).await;
    println!("{}: run again {:?} after the start", P::NAME, started_at.elapsed());
    assert_eq!((end.attempt, end.process), (2, again.id()));
}

/// A process that is stopped, as a debugger or a busy machine does it, keeps its jobs for as long as its leases last.
async fn a_stopped_process_keeps_its_jobs<P: Place>() {
    let queue = Queue::<P>::new().await;
    let mut stopped = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut stopped).await;
    stopped.signal("STOP").await;
    queue.another_process_dies(2).await;
    queue.assert_running(&kept).await;
    stopped.signal("CONT").await;
    queue.finishes_its_first_attempt(&mut stopped, &kept).await;
}

/// The tests above, on one store.
macro_rules! on {
    ($place:ty) => {
        #[tokio::test]
        async fn a_job_that_kills_its_process_backs_off() {
            super::a_job_that_kills_its_process_backs_off::<$place>().await;
        }

        #[tokio::test]
        async fn a_process_that_is_started_again_finds_what_it_had() {
            super::a_process_that_is_started_again_finds_what_it_had::<$place>().await;
        }

        #[tokio::test]
        async fn a_stopped_process_keeps_its_jobs() {
            super::a_stopped_process_keeps_its_jobs::<$place>().await;
        }
    };
}
use on;
