//! Files that are refused: the error says what to do, and nothing is written, not even a log beside the file.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use queuert::adapter::{NewChain, NewJob, StateAdapter};
use queuert::{JobId, Payload, StateError, StateErrorKind};
use queuert_sqlite::{SqliteOptions, SqliteState};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

fn directory() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    (directory, path)
}

async fn raw(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn written(path: &Path, statements: &[&'static str]) {
    let mut connection = raw(path).await;
    for statement in statements {
        connection.execute(*statement).await.unwrap();
    }
    connection.close().await.unwrap();
}

fn chain(number: u128) -> NewChain {
    let id = JobId::from_uuid(Uuid::from_u128(number));
    NewChain::new(NewJob::new(id, "task", Payload::from_text("{}")))
}

/// The length and a hash of a file, so that a difference is short to print.
type Content = (usize, u64);

/// All files of a directory that are not empty. SQLite creates an empty log and its index as soon as a file in write-ahead mode
/// is read, and leaves them behind if it cannot write.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Content> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file() && !path.to_str().unwrap().ends_with("-shm"));
    let content = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        (bytes.len(), hasher.finish())
    };
    let contents = files.map(|path| (path.clone(), content(&path)));
    contents
        .filter(|(path, (length, _))| *length > 0 || !path.to_str().unwrap().ends_with("-wal"))
        .collect()
}

/// The error with which the file is refused, having checked its kind, that it names the file, and that nothing changed.
async fn refused_with(options: SqliteOptions, path: &Path, kind: StateErrorKind) -> String {
    let above = path.ancestors().find(|above| above.is_dir() && *above != path).unwrap();
    let before = snapshot(above);
    let Err(error) = options.open(path).await else {
        panic!(
            "{} was opened: {:?}, before {before:?}",
            path.display(),
            snapshot(above)
        );
    };
    assert_eq!(error.kind(), kind, "{error}");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "it names the file: {error}"
    );
    assert_eq!(snapshot(above), before, "nothing was written");
    error.to_string()
}

async fn refused(path: &Path) -> String {
    refused_with(SqliteState::options(), path, StateErrorKind::Misconfigured).await
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_not_changed() {
    let long = "this is a letter, and quite a long one; ".repeat(1_000);
    for content in ["hello", "SQLite format 3, but not quite", &long] {
        let (_directory, path) = directory();
        std::fs::write(&path, content).unwrap();
        let error = refused(&path).await;
        assert!(error.contains("not an SQLite database"), "{error}");
    }
}

#[tokio::test]
async fn a_directory_instead_of_a_file_is_refused() {
    let (_directory, path) = directory();
    std::fs::create_dir(&path).unwrap();
    let error = refused(&path).await;
    assert!(error.contains("cannot be opened"), "{error}");
}

#[tokio::test]
async fn a_missing_directory_is_reported_and_not_created() {
    let (directory, _) = directory();
    let error = refused(&directory.path().join("nowhere").join("app.db")).await;
    assert!(error.contains("check that its directory exists"), "{error}");
    assert!(!directory.path().join("nowhere").exists());
}

#[tokio::test]
async fn a_damaged_database_is_corrupt() {
    let (_directory, path) = directory();
    SqliteState::open(&path).await.unwrap().close().await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The header stays, so the file is still a database; the list of its tables is destroyed.
    bytes[100..1_000].fill(0xFF);
    std::fs::write(&path, bytes).unwrap();
    let error = refused_with(SqliteState::options(), &path, StateErrorKind::Misconfigured).await;
    assert!(error.contains("restore a backup"), "{error}");
}

#[tokio::test]
async fn a_schema_from_the_future_is_refused() {
    let (_directory, path) = directory();
    SqliteState::open(&path).await.unwrap().close().await.unwrap();
    written(
        &path,
        &["INSERT INTO queuert_migration VALUES (999, 'from the future', 0)"],
    )
    .await;
    let error = refused(&path).await;
    assert!(
        error.contains("version 999") && error.contains("update the program"),
        "{error}"
    );
}

/// SQLite compares names without regard to case, and so must the check.
#[tokio::test]
async fn tables_of_the_application_with_our_names_are_not_changed() {
    for foreign in [
        "CREATE TABLE queuert_job (mine TEXT)",
        "CREATE TABLE Queuert_Job (mine TEXT)",
        "CREATE VIEW queuert_blocker AS SELECT 1",
        "CREATE TABLE queuert_notice (id INTEGER)",
        "CREATE TABLE queuert_migration (id INTEGER)",
        "CREATE TABLE queuert_job_id (id INTEGER)",
        "CREATE TABLE mine (x); CREATE INDEX Queuert_Job_Queue ON mine (x)",
        "CREATE TABLE QUEUERT_MIGRATION (version INTEGER, name TEXT)",
    ] {
        let (_directory, path) = directory();
        written(&path, &[foreign]).await;
        let error = refused(&path).await;
        assert!(
            error.contains("which is not queuert's") && error.contains(".prefix(..)"),
            "{foreign}: {error}"
        );
        // The advice helps.
        SqliteState::options().prefix("jobs_").open(&path).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_stays_locked_is_reported() {
    let (_directory, path) = directory();
    let mut other = raw(&path).await;
    other.execute("CREATE TABLE mine (x)").await.unwrap();
    other.execute("BEGIN EXCLUSIVE").await.unwrap();
    let options = SqliteState::options().lock_timeout(Duration::from_millis(100));
    let error = refused_with(options, &path, StateErrorKind::Transient).await;
    assert!(error.contains("look for a process"), "{error}");
    other.execute("COMMIT").await.unwrap();
    SqliteState::open(&path).await.unwrap();
}

#[tokio::test]
async fn a_read_only_connection_is_reported() {
    let (_directory, path) = directory();
    written(&path, &["CREATE TABLE mine (x)"]).await;
    let reading = SqliteState::options().connect_options(SqliteConnectOptions::new().read_only(true));
    let error = refused_with(reading, &path, StateErrorKind::Misconfigured).await;
    assert!(error.contains("cannot be written"), "{error}");
}

#[cfg(unix)]
mod elsewhere {
    //! Tests that need another process: with another user, or with less space.

    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Output};

    use super::*;

    /// The task of the child, and its directory.
    const TASK: &str = "QUEUERT_TEST_TASK";
    const PLACE: &str = "QUEUERT_TEST_PLACE";

    /// This program as another process.
    #[tokio::test]
    async fn child() {
        let (Ok(task), Ok(place)) = (std::env::var(TASK), std::env::var(PLACE)) else {
            return;
        };
        let place = Path::new(&place);
        match task.as_str() {
            "read-only" => read_only(place).await,
            "limited" => limited(place).await,
            "full" => full(place).await,
            task => panic!("unknown task {task}"),
        }
        println!("\nchild done");
    }

    fn child_command(program: &Path, task: &str, place: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .args(["--exact", "elsewhere::child", "--nocapture"])
            .env(TASK, task)
            .env(PLACE, place);
        command
    }

    fn done(output: &Output) {
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("child done"), "{said}{errors}");
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Runs as a user without write access. Root may write everywhere, so the child runs as the user `nobody` then.
    #[tokio::test]
    async fn a_read_only_file_is_reported() {
        const NOBODY: u32 = 65_534;
        let (directory, _) = directory();
        let place = directory.path().join("place");
        let closed = place.join("closed");
        std::fs::create_dir_all(&closed).unwrap();
        for file in [place.join("app.db"), closed.join("app.db")] {
            written(&file, &["PRAGMA journal_mode = WAL", "CREATE TABLE mine (x)"]).await;
            set_mode(&file, 0o444);
        }
        set_mode(directory.path(), 0o755);
        set_mode(&place, 0o777);
        set_mode(&closed, 0o555);
        let own = std::env::current_exe().unwrap();
        let is_root = std::fs::OpenOptions::new()
            .append(true)
            .open(place.join("app.db"))
            .is_ok();
        let output = if is_root {
            // A copy, because the other user may not be able to read the directory of the program.
            let copy = directory.path().join("program");
            std::fs::copy(&own, &copy).unwrap();
            set_mode(&copy, 0o755);
            let mut command = child_command(&copy, "read-only", &place);
            command.current_dir(directory.path()).uid(NOBODY).gid(NOBODY).output()
        } else {
            child_command(&own, "read-only", &place).output()
        };
        set_mode(&closed, 0o755);
        done(&output.unwrap());
    }

    async fn read_only(place: &Path) {
        let error = refused(&place.join("app.db")).await;
        assert!(error.contains("rights of the file"), "{error}");
        let error = refused(&place.join("closed").join("app.db")).await;
        assert!(error.contains("directory"), "{error}");
        let error = refused(&place.join("closed").join("new.db")).await;
        assert!(
            error.contains("check that its directory exists and can be written"),
            "{error}"
        );
    }

    fn transient(error: &StateError) {
        assert_eq!(error.kind(), StateErrorKind::Transient, "{error}");
        assert!(
            error.to_string().contains("space") || error.to_string().contains("full"),
            "{error}"
        );
    }

    /// A batch of several statements that does not fit into the writer's cache, so that the disk becomes full in the middle of
    /// it: SQLite rolls back the whole transaction by itself then.
    fn larger_than_the_cache() -> Vec<NewChain> {
        let input = format!("\"{}\"", "x".repeat(10_000));
        let chains = (100_000..103_000).map(|number| {
            let id = JobId::from_uuid(Uuid::from_u128(number));
            NewChain::new(NewJob::new(id, "task", Payload::from_text(input.clone())))
        });
        chains.collect()
    }

    /// A file size limit of the shell makes writes fail, like a disk error.
    #[tokio::test]
    async fn writes_that_fail_are_transient_and_lose_nothing() {
        let (_directory, path) = directory();
        // Blocks of 512 bytes. The signal would end the process; if it is ignored, the write fails.
        let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" --exact elsewhere::child --nocapture";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(std::env::current_exe().unwrap());
        let output = command.env(TASK, "limited").env(PLACE, path.parent().unwrap()).output();
        done(&output.unwrap());
    }

    async fn limited(place: &Path) {
        let state = SqliteState::open(place.join("app.db")).await.unwrap();
        state.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
        let many: Vec<NewChain> = (2..20_000).map(chain).collect();
        transient(&state.create_chains(None, &many).await.unwrap_err());
        transient(&state.create_chains(None, &larger_than_the_cache()).await.unwrap_err());
        let ids = [1, 2, 19_999].map(|number| JobId::from_uuid(Uuid::from_u128(number)));
        assert_eq!(
            state.get_jobs(None, &ids).await.unwrap().len(),
            1,
            "the first, and nothing of the batch"
        );
        state.create_chains(None, &[chain(2)]).await.unwrap().unwrap();
        state.close().await.unwrap();
        let mut connection = raw(&place.join("app.db")).await;
        let check: String = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(check, "ok");
    }

    /// A file system that is really full, if the test may mount one.
    #[tokio::test]
    async fn a_full_disk_is_transient_and_loses_nothing() {
        let (_directory, path) = directory();
        let place = path.parent().unwrap();
        let unshare = |script: &str| {
            let mut command = Command::new("unshare");
            command
                .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
                .arg(place);
            command
        };
        let mount = "mount -t tmpfs -o size=2m tmpfs \"$0\"";
        if !unshare(mount).output().is_ok_and(|output| output.status.success()) {
            eprintln!("left out: this machine does not let its users mount; see the test with a limit");
            return;
        }
        let script = format!("{mount} && exec \"$1\" --exact elsewhere::child --nocapture");
        let own = std::env::current_exe().unwrap();
        done(
            &unshare(&script)
                .arg(own)
                .env(TASK, "full")
                .env(PLACE, place)
                .output()
                .unwrap(),
        );
    }

    async fn full(place: &Path) {
        let filler = place.join("filler");
        let fill = || {
            let mut size = 2 << 20;
            // Fills the file system down to the last page.
            let mut file = std::fs::File::create(&filler).unwrap();
            while size >= 512 {
                if std::io::Write::write_all(&mut file, &vec![1; size]).is_err() {
                    size /= 2;
                }
            }
        };
        let path = place.join("app.db");
        fill();
        transient(&SqliteState::open(&path).await.unwrap_err());
        let left = std::fs::metadata(&path).map_or(0, |file| file.len());
        assert_eq!(left, 0, "no half of a schema");
        std::fs::remove_file(&filler).unwrap();

        let state = SqliteState::open(&path).await.unwrap();
        state.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
        fill();
        let many: Vec<NewChain> = (2..5_000).map(chain).collect();
        transient(&state.create_chains(None, &many).await.unwrap_err());
        transient(&state.create_chains(None, &larger_than_the_cache()).await.unwrap_err());
        let ids = [1, 2, 4_999].map(|number| JobId::from_uuid(Uuid::from_u128(number)));
        assert_eq!(
            state.get_jobs(None, &ids).await.unwrap().len(),
            1,
            "the first, and nothing of the batch"
        );
        std::fs::remove_file(&filler).unwrap();
        let some: Vec<NewChain> = (2..500).map(chain).collect();
        state.create_chains(None, &some).await.unwrap().unwrap();
        state.close().await.unwrap();
        let mut connection = raw(&path).await;
        let check: String = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(check, "ok");
    }
}
