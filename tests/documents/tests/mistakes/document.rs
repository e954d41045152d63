//! Reads `docs/mistakes.md`.

use std::path::{Path, PathBuf};

/// A mistake as the document tells it: what is said, and where that is tested.
pub(crate) struct Mistake {
    pub(crate) title: String,
    /// The lines of the text block.
    pub(crate) said: Vec<String>,
    /// What follows "Tested by", in backquotes: a file, or a test of this one.
    pub(crate) kept: String,
}

pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

pub(crate) fn mistakes() -> Vec<Mistake> {
    let text = std::fs::read_to_string(top().join("docs/mistakes.md")).unwrap();
    let sections = text.split("\n### ").skip(1);
    sections.map(mistake).collect()
}

fn mistake(section: &str) -> Mistake {
    let section = &section.replace("Tested by\n", "Tested by ");
    let title = section.lines().next().unwrap_or_default().to_owned();
    let between = |from: &str, to: &str| {
        let (_, rest) = section.split_once(from)?;
        Some(rest.split_once(to)?.0.to_owned())
    };
    let said = between("```text\n", "\n```").unwrap_or_else(|| panic!("`{title}` does not say what is said"));
    let kept = between("Tested by `", "`").unwrap_or_else(|| panic!("`{title}` does not say where it is tested"));
    Mistake {
        title,
        said: said.lines().map(|line| line.trim().to_owned()).collect(),
        kept,
    }
}

/// Asserts that the document quotes, for this test, what was really said. `…` in the document stands for anything.
#[track_caller]
pub(crate) fn assert_quoted(test: &str, said: &str) {
    let mistakes = mistakes();
    let mistake = mistakes
        .iter()
        .find(|mistake| mistake.kept == test)
        .unwrap_or_else(|| panic!("docs/mistakes.md has no mistake that is kept in `{test}`; it says: {said}"));
    let quoted = mistake.said.join(" ");
    assert!(
        fits(&quoted, said),
        "docs/mistakes.md, `{}`, quotes\n  {quoted}\nbut what is said is\n  {said}",
        mistake.title
    );
}

fn fits(quoted: &str, said: &str) -> bool {
    let mut parts = quoted.split('…');
    let Some(mut rest) = parts.next().and_then(|first| said.strip_prefix(first)) else {
        return false;
    };
    for part in parts {
        match rest.find(part) {
            // What comes last must also end there.
            Some(at) if !part.is_empty() => rest = &rest[at + part.len()..],
            Some(_) => return true,
            None => return false,
        }
    }
    rest.is_empty()
}

#[test]
fn quotations_with_gaps_fit_what_fills_them() {
    assert!(fits("chain … ended", "chain 7 ended"));
    assert!(!fits("chain … ended", "chain 7 ended, or not"));
    assert!(!fits("chain ended", "chain 7 ended"));
    assert!(fits("due at …", "due at noon"));
}

#[test]
fn the_document_has_the_mistakes_of_a_newcomer() {
    let mistakes = mistakes();
    assert!(mistakes.len() >= 40, "{}", mistakes.len());
    for (number, mistake) in mistakes.iter().enumerate() {
        let prefix = format!("{}. ", number + 1);
        assert!(mistake.title.starts_with(&prefix), "number {prefix}: {}", mistake.title);
    }
}
