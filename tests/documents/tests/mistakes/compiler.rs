//! What the compiler says is in the snapshots of `tests/ui`, which a test of its own keeps.

use super::document::{mistakes, top};

#[test]
fn the_document_quotes_the_compiler() {
    let mut count = 0;
    for mistake in mistakes() {
        // A snapshot beside the file, or a test that names the lines itself.
        let path = match mistake.kept.strip_suffix(".rs") {
            Some(path) if path.starts_with("tests/ui/") => format!("{path}.stderr"),
            Some(_) => mistake.kept,
            None => continue,
        };
        let snapshot = std::fs::read_to_string(top().join(&path)).unwrap();
        for line in mistake.said {
            assert!(
                snapshot.contains(&line),
                "`{}` quotes `{line}`, which {path} does not have",
                mistake.title
            );
        }
        count += 1;
    }
    assert!(count >= 20, "{count}");
}
