//! One file, several processes.

use std::path::PathBuf;

use queuert::ChainId;
use queuert_sqlite::{Client, SqliteNotify, SqliteState};
use queuert_torture::recovery::Role;
use tempfile::TempDir;

use super::queue::{Place, Queue};
use super::{VICTIMS, on};

struct File(TempDir);

impl File {
    /// The files by which processes show that they live.
    fn alive(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.0.path()).expect("the directory can be read");
        let paths = files.map(|file| file.expect("the directory can be read").path());
        paths
            .filter(|path| path.to_string_lossy().contains("-alive-"))
            .collect()
    }
}

impl Place for File {
    const NAME: &str = "sqlite";
    type State = SqliteState;

    async fn make() -> (Self, Client) {
        let place = Self(TempDir::new().expect("a temporary directory can be made"));
        let state = SqliteState::open(place.store())
            .await
            .expect("a new file can be opened");
        let notify = SqliteNotify::new(&state);
        (place, Client::builder(state).notify(notify).build())
    }

    fn store(&self) -> String {
        let path = self.0.path().join("app.db");
        path.to_str().expect("the path is text").to_owned()
    }

    /// The claim tells.
    async fn knows_who_runs(&self, _: ChainId) {}
}

on!(File);

#[tokio::test]
async fn the_jobs_of_a_killed_process_run_again_after_their_backoff() {
    let queue = super::killed::<File>("").await;
    let left = queue.place.alive().len();
    assert!(left <= 2, "{left} files are left of {} processes", VICTIMS + 1);
}

/// An operator who tidies up the directory does no harm: a file that is missing says nothing.
#[tokio::test]
async fn a_process_whose_file_was_deleted_keeps_its_jobs() {
    let queue = Queue::<File>::new().await;
    let mut robbed = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut robbed).await;
    for file in queue.place.alive() {
        std::fs::remove_file(file).expect("the file can be removed");
    }
    queue.another_process_dies(2).await;
    queue.assert_running(&kept).await;
    queue.finishes_its_first_attempt(&mut robbed, &kept).await;
}
