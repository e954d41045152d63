//! What is wrong with the command line or the database is told, with what to do about it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// What the program exits with, and says.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
    let output = command.env_remove("DATABASE_URL").args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_wrong_command_line_is_answered_with_the_right_one() {
    for (arguments, problem) in [
        (&[][..], "say whether to serve or to work"),
        (&["serve"], "say which database"),
        (&["serve", "--sqlite"], "--sqlite needs a value"),
        (
            &["work", "--sqlite", "shop.db", "--workers", "many"],
            "--workers cannot be `many`",
        ),
        (&["work", "--shop", "mine"], "--shop is no option"),
    ] {
        let (code, said) = run(arguments);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.starts_with(problem) && said.contains("usage: service serve"),
            "{said}"
        );
    }
}

#[test]
fn a_database_that_cannot_be_opened_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nowhere").join("shop.db");
    let (code, said) = run(&["serve", "--sqlite", file.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("check that its directory exists"), "{said}");
    let (code, said) = run(&["work", "--postgres", "postgres://nobody@127.0.0.1:1/nothing"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot be reached"), "{said}");
}
