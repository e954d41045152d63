//! Links between the documents lead somewhere, the book lists its pages, samples are short and hide little, and the tests
//! that the page about reliability names exist.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<_> = std::fs::read_dir(top().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    pages
}

/// The targets of Markdown links, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut prose = String::new();
    for (number, part) in text.split("```").enumerate() {
        if number % 2 == 0 {
            prose.push_str(part);
        }
    }
    let targets = prose.split("](").skip(1);
    targets
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .filter(|target| !target.contains("://"))
        .collect()
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut documents = pages();
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "DESIGN.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "benches/README.md",
        "benches/FIGURES.md",
        "benches/HISTORY.md",
    ] {
        documents.push(top().join(name));
    }
    let mut count = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            let (path, wanted) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            assert!(target.exists(), "{} links to {link}", document.display());
            if !wanted.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let found = text.lines().any(|line| line.starts_with('#') && anchor(line) == wanted);
                assert!(found, "{} links to {link}: no such heading", document.display());
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count} links found");
}

#[test]
fn the_book_lists_its_pages_once() {
    let summary = std::fs::read_to_string(top().join("docs/SUMMARY.md")).unwrap();
    let listed = links(&summary);
    let names: BTreeSet<_> = pages()
        .iter()
        .map(|page| page.file_name().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "SUMMARY.md")
        .collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), names);
    assert_eq!(listed.len(), names.len(), "a page is listed twice");
}

/// A reader must not have to guess what a sample leaves out.
#[test]
fn samples_hide_two_lines_at_most() {
    let mut documents = pages();
    documents.push(top().join("README.md"));
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for block in text
            .split("```")
            .skip(1)
            .step_by(2)
            .filter(|block| block.starts_with("rust"))
        {
            let hidden = block
                .lines()
                .filter(|line| line.starts_with("# ") || *line == "#")
                .count();
            assert!(hidden <= 2, "{} hides {hidden} lines of\n{block}", document.display());
        }
    }
}

/// The first example of the README fits on a screen.
#[test]
fn the_example_of_the_readme_has_forty_lines_at_most() {
    let text = std::fs::read_to_string(top().join("README.md")).unwrap();
    let sample = text.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let lines = sample.lines().count();
    assert!(lines <= 40, "the example has {lines} lines");
}

/// The names of functions, modules and files in which tests can be, and the texts in the sources of the torture tests, which
/// name its faults and rules.
fn names_in_sources() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut open: Vec<_> = ["queuert", "adapters", "tests"].map(|name| top().join(name)).into();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            names.extend(path.file_stem().map(|stem| stem.to_str().unwrap().to_owned()));
            names.extend(path.iter().map(|part| part.to_str().unwrap().to_owned()));
            let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let named = words.windows(2).filter(|pair| matches!(pair[0], "fn" | "mod"));
            names.extend(named.map(|pair| pair[1].to_owned()));
            if path.starts_with(top().join("tests/torture")) {
                let texts = text.split('"').filter_map(|text| text.split(':').next());
                names.extend(texts.map(str::to_owned));
            }
        }
    }
    names
}

/// A promise is worth its attack: every test, fault and rule in the second columns exists.
#[test]
fn the_attacks_on_the_promises_exist() {
    let names = names_in_sources();
    let text = std::fs::read_to_string(top().join("docs/reliability.md")).unwrap();
    let promises = text.split_once("## What is not promised").unwrap().0;
    let mut count = 0;
    for row in promises.lines().filter(|line| line.starts_with("| **")) {
        let attacks = row.trim_end_matches(" |").rsplit_once(" | ").unwrap().1;
        let quoted = attacks.split('`').skip(1).step_by(2);
        let rules = attacks.split('*').skip(1).step_by(2);
        let is_command = |name: &&str| name.starts_with("scripts/") || name.starts_with("queuert-torture ");
        for name in quoted.filter(|name| !is_command(name)).chain(rules) {
            let found = name.split("::").all(|part| names.contains(part));
            assert!(
                found,
                "docs/reliability.md names `{name}`, and there is no such test, fault or rule"
            );
            count += 1;
        }
        assert!(attacks.contains(['`', '*']), "nothing attacks this promise: {row}");
    }
    assert!(count > 100, "{count} names found");
}

/// Whether a text refers to an entry of an issue tracker, which a reader of the repository cannot look up.
fn names_an_issue(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut behind = text.split("issue").skip(1);
    behind.any(|rest| {
        let rest = rest.trim_start_matches('s').trim_start_matches([' ', '#']);
        rest.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[test]
fn no_file_refers_to_an_issue() {
    let mut open: Vec<_> = ["queuert", "adapters", "tests", "benches", "examples", "docs", "scripts"]
        .map(|name| top().join(name))
        .into();
    open.extend(
        [
            "README.md",
            "ARCHITECTURE.md",
            "DESIGN.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
        ]
        .map(|name| top().join(name)),
    );
    let mut count = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() && !path.ends_with("target") {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            assert!(!names_an_issue(&text), "{} refers to an issue", path.display());
            count += 1;
        }
    }
    assert!(count > 500, "{count} files found");
}
