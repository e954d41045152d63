//! No case of the client's behaviour is forgotten: every one stands in the list that the macro expands, and
//! `CLIENT_CASES.md` tells the truth about them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const FOLDER: &str = "src/behaviour/client";

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the file is part of the crate")
}

/// `subject::case` of every public async function.
fn written() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let mut cases = BTreeSet::new();
    for file in fs::read_dir(folder).expect("the folder is part of the crate") {
        let path = file.expect("the folder can be read").path();
        let subject = path.file_stem().expect("a file has a name").to_string_lossy();
        let text = read(&path);
        let functions = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        cases.extend(functions.map(|rest| format!("{subject}::{}", rest.split('<').next().unwrap_or_default())));
    }
    cases
}

/// `subject::case` of everything that the macro expands to.
fn listed() -> BTreeSet<String> {
    let text = read(Path::new(FOLDER).join("mod.rs"));
    let body = text.split("{ $fixture;").nth(1).expect("the macro has a list");
    let mut subject = "";
    let mut cases = BTreeSet::new();
    for line in body.lines().map(str::trim).take_while(|line| *line != "};") {
        if let Some(name) = line.strip_suffix(" {") {
            subject = name;
        } else if let Some(case) = line.strip_suffix(',') {
            cases.insert(format!("{subject}::{case}"));
        }
    }
    cases
}

#[test]
fn every_case_is_listed() {
    assert_eq!(written(), listed());
    assert!(!listed().is_empty());
}

#[test]
fn the_table_names_cases_that_exist_and_leaves_no_number_out() {
    let table = read("CLIENT_CASES.md");
    let cases = written();
    for name in table.split('`').filter(|part| part.contains("::")) {
        assert!(
            cases.contains(name),
            "CLIENT_CASES.md names `{name}`, which does not exist"
        );
    }
    for (letters, count) in [
        ("C", 9),
        ("SC", 23),
        ("B", 9),
        ("D", 10),
        ("SD", 10),
        ("TR", 11),
        ("DL", 20),
        ("WL", 11),
        ("AW", 5),
        ("Q", 51),
        ("VC", 13),
        ("H", 49),
    ] {
        for number in 1..=count {
            let row = format!("| {letters}{number} | ");
            assert!(
                table.contains(&row),
                "CLIENT_CASES.md says nothing about {letters}{number}"
            );
        }
    }
}
