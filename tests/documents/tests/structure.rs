//! Keeps the structure of the repository: which crate may depend on which, what the core may not know, and that the
//! documents name what exists.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn metadata(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .args(arguments)
        .current_dir(top())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The workspace's crates that a crate depends on, without dev-dependencies.
fn own_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let own: BTreeSet<_> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            let names = dependencies
                .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
                .map(|dependency| dependency["name"].as_str().unwrap())
                .filter(|name| own.contains(name))
                .map(str::to_owned)
                .collect();
            (package["name"].as_str().unwrap().to_owned(), names)
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let of_queuert = BTreeSet::from(["queuert".to_owned()]);
    for (name, dependencies) in own_dependencies() {
        let allowed = match name.as_str() {
            "queuert-derive" => BTreeSet::new(),
            "queuert" => BTreeSet::from(["queuert-derive".to_owned()]),
            "queuert-conformance" => of_queuert.clone(),
            adapter if is_adapter(adapter) => of_queuert.clone(),
            // Unpublished crates stand on top: tests, examples and benchmarks.
            _ => continue,
        };
        assert!(
            dependencies.is_subset(&allowed),
            "{name} depends on {dependencies:?}, but may depend on {allowed:?} only"
        );
    }
}

fn is_adapter(name: &str) -> bool {
    name.strip_prefix("queuert-")
        .is_some_and(|short| top().join("adapters").join(short).join("Cargo.toml").exists())
}

#[test]
fn nothing_published_depends_on_something_unpublished() {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let unpublished: BTreeSet<_> = packages
        .iter()
        .filter(|package| package["publish"].as_array().is_some_and(Vec::is_empty))
        .map(|package| package["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(unpublished.contains("queuert-documents"));
    for (name, dependencies) in own_dependencies() {
        if !unpublished.contains(&name) {
            assert!(
                dependencies.is_disjoint(&unpublished),
                "{name} depends on {dependencies:?}"
            );
        }
    }
}

/// Everything that a user of the core compiles.
#[test]
fn the_core_knows_no_database_no_http_and_no_telemetry() {
    let metadata = metadata(&[]);
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["id"].as_str().unwrap(), node))
        .collect();
    let name_of: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| (package["id"].as_str().unwrap(), package["name"].as_str().unwrap()))
        .collect();
    let (root, _) = name_of.iter().find(|(_, name)| **name == "queuert").unwrap();
    let mut seen = BTreeSet::new();
    let mut open = vec![*root];
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            let normal = dependency["dep_kinds"]
                .as_array()
                .unwrap()
                .iter()
                .any(|kind| kind["kind"].is_null());
            if normal {
                open.push(dependency["pkg"].as_str().unwrap());
            }
        }
    }
    let names: BTreeSet<_> = seen.iter().map(|id| name_of[id]).collect();
    assert!(
        names.contains("tokio") && names.contains("serde"),
        "the walk finds nothing: {names:?}"
    );
    let banned = [
        "sqlx",
        "sqlite",
        "postgres",
        "mysql",
        "redis",
        "nats",
        "http",
        "hyper",
        "axum",
        "reqwest",
        "tower",
        "tonic",
        "opentelemetry",
        "rusqlite",
        "diesel",
    ];
    for name in names {
        assert!(
            !banned.iter().any(|part| name.contains(part)),
            "the core compiles {name}"
        );
    }
}

/// Paths in backquotes that look like paths of this repository.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|quoted| {
        let starts = [
            "queuert/",
            "adapters/",
            "examples/",
            "benches/",
            "tests/",
            "docs/",
            "scripts/",
            ".ci/",
        ];
        starts.iter().any(|start| quoted.starts_with(start)) && !quoted.contains(['{', '<', '*', ' '])
    })
}

#[test]
fn the_documents_name_what_exists() {
    let mut count = 0;
    for document in ["README.md", "ARCHITECTURE.md", "DESIGN.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(top().join(document)).unwrap();
        for path in named_paths(&text) {
            assert!(
                top().join(path).exists(),
                "{document} names {path}, which does not exist"
            );
            count += 1;
        }
    }
    assert!(count > 10, "no paths found");
}

#[test]
fn every_rust_sample_is_compiled() {
    let mut documents: Vec<PathBuf> = vec!["README.md".into(), "ARCHITECTURE.md".into(), "DESIGN.md".into()];
    for entry in std::fs::read_dir(top().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(Path::new("docs").join(path.file_name().unwrap()));
        }
    }
    let included = std::fs::read_to_string(top().join("tests/documents/src/lib.rs")).unwrap();
    for document in documents {
        let name = document.to_str().unwrap();
        assert!(
            included.contains(name),
            "{name} is not compiled: add it to tests/documents/src/lib.rs"
        );
        let text = std::fs::read_to_string(top().join(&document)).unwrap();
        assert!(
            !text.contains("```rust,ignore") && !text.contains("```ignore"),
            "{name} has an ignored sample"
        );
    }
}

#[test]
fn the_readme_shows_the_two_commands() {
    let text = std::fs::read_to_string(top().join("README.md")).unwrap();
    assert!(text.contains("cargo run -p quick-start"));
    assert!(text.contains("scripts/test"));
    let ci = std::fs::read_to_string(top().join(".ci/run")).unwrap();
    assert!(ci.contains("scripts/test"));
}

/// What the registry asks for, and what a user looks for there.
#[test]
fn published_crates_have_complete_metadata() {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let unpublished = |package: &&Value| !package["publish"].as_array().is_some_and(Vec::is_empty);
    let published: Vec<_> = packages.iter().filter(unpublished).collect();
    assert!(published.len() >= 5);
    for package in published {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "license", "readme", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        assert_eq!(
            package["documentation"].as_str(),
            Some(format!("https://docs.rs/{name}").as_str())
        );
        for (field, most) in [("keywords", 5), ("categories", 5)] {
            let count = package[field].as_array().unwrap().len();
            assert!((1..=most).contains(&count), "{name} has {count} {field}");
        }
        let features = &package["metadata"]["docs"]["rs"]["all-features"];
        assert_eq!(
            features.as_bool(),
            Some(true),
            "{name} does not show all its features on docs.rs"
        );
        // A path alone cannot be published; a dev-dependency with nothing but a path is left out of the package.
        for dependency in package["dependencies"].as_array().unwrap() {
            let local = dependency["path"].is_string() && dependency["kind"].as_str() != Some("dev");
            assert!(
                !local || dependency["req"].as_str() != Some("*"),
                "{name} needs a version for {}",
                dependency["name"]
            );
        }
    }
}

/// A dropped future must not be a riddle: every public async function says what it leaves behind.
#[test]
fn public_async_functions_say_what_a_dropped_future_leaves() {
    let mut open = vec![top().join("queuert/src"), top().join("adapters")];
    let mut count = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let source = path.components().any(|part| part.as_os_str() == "src");
        if !source || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines: Vec<_> = code.lines().map(str::trim).collect();
        for (number, line) in lines.iter().enumerate() {
            let Some(name) = line.strip_prefix("pub async fn ") else {
                continue;
            };
            let attached = |line: &&&str| line.starts_with("///") || line.starts_with("#[");
            let mut above = lines[..number].iter().rev().take_while(attached);
            let place = path.strip_prefix(top()).unwrap().display();
            assert!(above.any(|line| line.contains("# Cancel safety")), "{place}: {name}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} functions found");
}
