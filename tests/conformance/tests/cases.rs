//! No case is forgotten: every one stands in the list that the macros expand, and `CASES.md` tells the truth about them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the file is part of the crate")
}

/// `group::case` of every public async function under a seam's folder.
fn written(seam: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(seam);
    let files = fs::read_dir(folder).expect("the folder is part of the crate");
    let mut cases = BTreeSet::new();
    for file in files {
        let path: PathBuf = file.expect("the folder can be read").path();
        let group = path
            .file_stem()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&path).expect("the file can be read");
        let functions = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        cases.extend(functions.map(|rest| format!("{group}::{}", rest.split('<').next().unwrap_or_default())));
    }
    cases
}

/// `group::case` of everything that the macro of a seam expands to.
fn listed(seam: &str) -> BTreeSet<String> {
    let text = read("src/list.rs");
    let start = format!("{{ {seam} $fixture;");
    let body = text.split(start.as_str()).nth(1).expect("the seam has a list");
    let mut group = "";
    let mut cases = BTreeSet::new();
    for line in body.lines().map(str::trim).take_while(|line| *line != "};") {
        if let Some(name) = line.strip_suffix(" {") {
            group = name;
        } else if let Some(case) = line.strip_suffix(',') {
            cases.insert(format!("{group}::{case}"));
        }
    }
    cases
}

#[test]
fn every_case_is_listed() {
    for seam in ["state", "notify"] {
        assert_eq!(written(seam), listed(seam), "{seam}");
        assert!(!written(seam).is_empty());
    }
}

#[test]
fn the_table_names_cases_that_exist_and_leaves_no_number_out() {
    let table = read("CASES.md");
    let cases: BTreeSet<_> = written("state").into_iter().chain(written("notify")).collect();
    for name in table.split('`').filter(|part| part.contains("::")) {
        assert!(cases.contains(name), "CASES.md names `{name}`, which does not exist");
    }
    for (letter, count) in [('S', 145), ('N', 24), ('H', 30), ('I', 17)] {
        for number in 1..=count {
            let row = format!("| {letter}{number} | ");
            assert!(table.contains(&row), "CASES.md says nothing about {letter}{number}");
        }
    }
}
