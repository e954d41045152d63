//! No case is forgotten: each one is in the list that a macro expands, and the tables in the Markdown files name only cases
//! that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A list of cases, which a macro expands.
struct Suite {
    /// The folder of the cases, a file per group.
    folder: &'static str,
    /// The file of the macro.
    list: &'static str,
    /// What is in front of the list.
    start: &'static str,
}

const STATE: Suite = Suite {
    folder: "src/state",
    list: "src/list.rs",
    start: "{ state $fixture;",
};

const NOTIFY: Suite = Suite {
    folder: "src/notify",
    list: "src/list.rs",
    start: "{ notify $fixture;",
};

const CLIENT: Suite = Suite {
    folder: "src/behaviour/client",
    list: "src/behaviour/client/mod.rs",
    start: "{ $fixture;",
};

const WORKER: Suite = Suite {
    folder: "src/behaviour/worker",
    list: "src/behaviour/worker/mod.rs",
    start: "{ $fixture;",
};

/// A table that says for each promise which cases keep it.
struct Table {
    file: &'static str,
    suites: &'static [Suite],
    /// The letters of the promises, and how many there are of each.
    promises: &'static [(&'static str, usize)],
}

const TABLES: [Table; 3] = [
    Table {
        file: "CASES.md",
        suites: &[STATE, NOTIFY],
        promises: &[("S", 145), ("N", 24), ("H", 30), ("I", 17)],
    },
    Table {
        file: "CLIENT_CASES.md",
        suites: &[CLIENT],
        promises: &[
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
        ],
    },
    Table {
        file: "WORKER_CASES.md",
        suites: &[WORKER],
        promises: &[
            ("PM", 6),
            ("PE", 17),
            ("PR", 5),
            ("W", 7),
            ("R", 4),
            ("C", 9),
            ("B", 9),
            ("SD", 10),
            ("NT", 13),
            ("LG", 21),
            ("H", 30),
            ("I", 17),
        ],
    },
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the file is part of the crate")
}

impl Suite {
    /// `group::case` of every public async function in the folder.
    fn written(&self) -> BTreeSet<String> {
        let mut cases = BTreeSet::new();
        for file in fs::read_dir(path(self.folder)).expect("the folder is part of the crate") {
            let file = file.expect("the folder can be read").path();
            let group = file
                .file_stem()
                .expect("a file has a name")
                .to_string_lossy()
                .into_owned();
            let text = read(&file);
            let functions = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            let names = functions.map(|rest| rest.split('<').next().unwrap_or_default());
            cases.extend(names.map(|name| format!("{group}::{name}")));
        }
        cases
    }

    /// `group::case` of everything that the macro expands to.
    fn listed(&self) -> BTreeSet<String> {
        let text = read(&path(self.list));
        let body = text.split(self.start).nth(1).expect("the macro has a list");
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
}

#[test]
fn every_case_is_listed() {
    for suite in [STATE, NOTIFY, CLIENT, WORKER] {
        assert_eq!(suite.written(), suite.listed(), "{}", suite.folder);
        assert!(!suite.listed().is_empty(), "{}", suite.folder);
    }
}

#[test]
fn the_tables_name_cases_that_exist_and_leave_no_number_out() {
    for Table { file, suites, promises } in TABLES {
        let table = read(&path(file));
        let cases: BTreeSet<String> = suites.iter().flat_map(Suite::written).collect();
        for name in table.split('`').filter(|part| part.contains("::")) {
            assert!(cases.contains(name), "{file} names `{name}`, which does not exist");
        }
        for (letters, count) in promises {
            for number in 1..=*count {
                let row = format!("| {letters}{number} | ");
                assert!(table.contains(&row), "{file} says nothing about {letters}{number}");
            }
        }
    }
}
