//! Runs every example, and asserts that it prints what the comment on its top says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

/// Nothing here takes that long; a hang should say where.
const LONG: Duration = Duration::from_secs(90);

/// The lines of the text block below the comment's "prints".
fn documented(name: &str) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/bin/{name}.rs"));
    let source = std::fs::read_to_string(source).unwrap();
    let comment: Vec<&str> = source
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    let intro = format!("`cargo run -p patterns --bin {name}`");
    let start = comment.iter().position(|line| line.contains(&intro)).unwrap();
    let block = comment[start..].iter().skip_while(|line| **line != "```text").skip(1);
    block
        .take_while(|line| **line != "```")
        .map(|line| (*line).to_owned())
        .collect()
}

/// Puts `<id>` where an id is, because ids are new each time.
fn without_ids(line: &str) -> String {
    let is_id = |text: &str| {
        text.char_indices().all(|(index, character)| match index {
            8 | 13 | 18 | 23 => character == '-',
            _ => character.is_ascii_hexdigit(),
        })
    };
    let mut rest = line;
    let mut result = String::new();
    while let Some(first) = rest.chars().next() {
        match rest.get(..36).filter(|text| is_id(text)) {
            Some(_) => {
                result.push_str("<id>");
                rest = &rest[36..];
            }
            None => {
                result.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    result
}

async fn prints_what_it_says(name: &str, program: &str) {
    let run = Command::new(program).kill_on_drop(true).output();
    let output = tokio::time::timeout(LONG, run).await.unwrap().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "", "nothing to complain about");
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<String> = printed.lines().map(without_ids).collect();
    let documented = documented(name);
    assert!(!documented.is_empty());
    assert_eq!(printed, documented, "printed, and documented");
}

macro_rules! examples {
    ($($name:ident)+) => {
        $(#[tokio::test]
        async fn $name() {
            prints_what_it_says(stringify!($name), env!(concat!("CARGO_BIN_EXE_", stringify!($name)))).await;
        })+

        /// `shutdown` has a test of its own.
        #[test]
        fn every_example_is_run() {
            let mut tested = vec!["shutdown", $(stringify!($name)),+];
            tested.sort_unstable();
            let directory = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin")).unwrap();
            let names = directory.map(|entry| entry.unwrap().path().file_stem().unwrap().to_owned());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort_unstable();
            assert_eq!(tested, names);
        }
    };
}

examples! {
    approval blockers chains deduplication middleware priorities retries staged testing tracing transactional
}

#[test]
fn ids_are_told_from_other_text() {
    assert_eq!(
        without_ids("chain 01890a5d-ac96-774b-bcce-b302099a8057 – ended"),
        "chain <id> – ended"
    );
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(without_ids(trace), trace);
}
