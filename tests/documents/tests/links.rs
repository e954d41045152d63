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
