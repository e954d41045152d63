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
        // Two traits without a line of code, and only for those who ask for them.
        let allowed = ["tower-layer", "tower-service"].contains(&name);
        assert!(
            allowed || !banned.iter().any(|part| name.contains(part)),
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
    let mut documents: Vec<_> = ["README.md", "ARCHITECTURE.md", "DESIGN.md", "CONTRIBUTING.md"]
        .map(|name| top().join(name))
        .into();
    let pages = std::fs::read_dir(top().join("docs")).unwrap();
    let pages = pages.map(|page| page.unwrap().path());
    documents.extend(pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")));
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for path in named_paths(&text) {
            assert!(
                top().join(path).exists(),
                "{} names {path}, which does not exist",
                document.display()
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

/// Files that the index links to, and all that it should link to.
#[test]
fn the_index_of_the_examples_is_complete() {
    let examples = top().join("examples");
    let text = std::fs::read_to_string(examples.join("README.md")).unwrap();
    let links: BTreeSet<&str> = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    for link in &links {
        assert!(
            examples.join(link).exists(),
            "examples/README.md links to {link}, which does not exist"
        );
    }
    let linked = |start: &str| links.iter().any(|link| link.starts_with(start));
    for entry in std::fs::read_dir(&examples).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(
            !entry.path().is_dir() || linked(&format!("{name}/")),
            "examples/README.md lacks {name}"
        );
    }
    for entry in std::fs::read_dir(examples.join("patterns/src/bin")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            linked(&format!("patterns/src/bin/{name}")),
            "examples/README.md lacks {name}"
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

/// The source files of what is published, with their text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut open = vec![
        top().join("queuert"),
        top().join("adapters"),
        top().join("tests/conformance"),
    ];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        let source = path.components().any(|part| part.as_os_str() == "src");
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if source && path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    assert!(found.len() > 100, "{} files found", found.len());
    found
}

/// The part of a source file that ships: the tests inside it come last.
fn shipped<'t>(path: &Path, text: &'t str) -> &'t str {
    let is_test = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    if is_test {
        ""
    } else {
        text.split("#[cfg(test)]\nmod tests {").next().unwrap()
    }
}

/// How a piece of code spawns tasks other than through `__task` of the core: every name that begins with `spawn` and is
/// neither one of its functions nor a definition, with what it is called on. Threads are no tasks.
fn wild_spawns(code: &str) -> Vec<String> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let is_path = |character: char| is_name(character) || matches!(character, ':' | '.' | ')');
    let mut found = Vec::new();
    // Over several lines, as `rustfmt` breaks calls.
    let mut statement = String::new();
    for line in code.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let known = statement.len();
        if !line.starts_with('.') {
            statement.push(' ');
        }
        statement.push_str(line);
        for (index, _) in statement.match_indices("spawn").filter(|(index, _)| *index >= known) {
            let (before, rest) = statement.split_at(index);
            let name: String = rest.chars().take_while(|character| is_name(*character)).collect();
            if before.ends_with(is_name) || before.ends_with("fn ") {
                continue;
            }
            let path = &before[before.trim_end_matches(is_path).len()..];
            // What the texts of messages speak of.
            let quoted = before.strip_suffix(path).is_some_and(|before| before.ends_with('`'));
            let imports_tokio = statement.contains("use tokio");
            let is_ours = match path {
                "" => !imports_tokio && ["spawn", "spawn_on", "spawn_in"].contains(&name.as_str()),
                "__task::" | "crate::__task::" | "queuert::__task::" => true,
                "Self::" | "Workers::" => name == "spawn",
                "thread." => name == "spawn",
                _ => path.ends_with(").") && before.contains("std::thread::Builder::new()"),
            };
            if !quoted && !is_ours {
                found.push(format!("{path}{name}"));
            }
        }
        let is_import = statement.trim_start().starts_with("use ");
        if line.ends_with(';') || (line.ends_with(['{', '}', ',']) && !is_import) {
            statement.clear();
        }
    }
    found
}

#[test]
fn every_way_to_spawn_is_noticed() {
    for wild in [
        "tokio::spawn(work());",
        "task::spawn(work());",
        "tokio::task::spawn_blocking(work);",
        "tokio::task::spawn_local(work());",
        "let set = set.spawn(work());",
        "self.tasks.spawn_on(work(), &runtime);",
        "runtime.handle().spawn(work());",
        "Handle::current()\n    .spawn(work());",
        "tasks.map(tokio::spawn);",
        "tasks.build_task().name(\"it\").spawn(work());",
        "use tokio::spawn;",
        "use tokio::{\n    spawn,\n    time,\n};",
        "spawn_blocking(work);",
    ] {
        assert_eq!(wild_spawns(wild).len(), 1, "{wild}");
    }
    for tame in [
        "use queuert::__task::{Lock, spawn, spawn_on};",
        "spawn(work());",
        "let task = spawn_on(&runtime, work());",
        "match spawn_in(&mut tasks, work()) {",
        "crate::__task::spawn(work());",
        "pub(crate) fn spawn(runtime: Runtime) -> Self {",
        "// tokio::spawn(work());",
        "\"use `tokio::task::spawn_blocking`\"",
        "let _ = std::thread::Builder::new().name(name).spawn(work);",
        "respawn(work());",
    ] {
        assert_eq!(wild_spawns(tame), [""; 0], "{tame}");
    }
}

/// A runtime that is ending drops a task in the call that spawns it. Spawned under a lock that the task takes when it is
/// dropped, the runtime would never end. `Lock` and `spawn` of the core find that out in every test, where all use them.
#[test]
fn tasks_are_spawned_in_a_way_that_notices_a_lock() {
    let mut spawning = 0;
    for (path, text) in sources() {
        let text = shipped(&path, &text);
        if path.ends_with("queuert/src/__task.rs") || path.starts_with(top().join("tests")) {
            continue;
        }
        let wild = wild_spawns(text);
        assert!(
            wild.is_empty(),
            "{}: {wild:?} spawn tasks; use `spawn`, `spawn_on` or `spawn_in` of `queuert::__task`",
            path.display()
        );
        let spawns = text.contains("__task::") && text.contains("spawn");
        spawning += usize::from(spawns);
    }
    assert!(spawning >= 12, "only {spawning} files that spawn were found");
}

/// The locks of a piece of code that are none of `__task` of the core. Those of `tokio` are held by tasks, across awaits.
fn wild_locks(code: &str) -> Vec<&str> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let of_tokio = lines
        .clone()
        .any(|line| line.contains("tokio::sync") && line.contains("Mutex"));
    let mut found = Vec::new();
    for line in lines {
        for name in line.split(|character| !is_name(character)) {
            let tame = of_tokio && name == "Mutex" && !line.contains("std::sync");
            if [
                "Mutex",
                "MutexGuard",
                "RwLock",
                "ReentrantLock",
                "Condvar",
                "parking_lot",
            ]
            .contains(&name)
                && !tame
            {
                found.push(name);
            }
        }
    }
    found
}

#[test]
fn every_lock_is_noticed() {
    for wild in [
        "use std::sync::{Arc, Mutex};",
        "held: std::sync::RwLock<u32>,",
        "use parking_lot::RawLock;",
        "use tokio::sync::Mutex;\nheld: std::sync::Mutex<u32>,",
    ] {
        assert_eq!(wild_locks(wild).len(), 1, "{wild}");
    }
    for tame in [
        "use queuert::__task::{Lock, SharedLock};",
        "use tokio::sync::Mutex;\nheld: Mutex<u32>,",
        "// a `Mutex` would do",
    ] {
        assert_eq!(wild_locks(tame), [""; 0], "{tame}");
    }
}

/// `Lock` and `SharedLock` of the core notice in every test what would hang: a task that is spawned under a lock, and a thread
/// that takes a lock that it holds. So what is published has no other locks.
#[test]
fn locks_notice_what_would_hang() {
    let mut locking = 0;
    for (path, text) in sources() {
        let text = shipped(&path, &text);
        if path.ends_with("queuert/src/__task.rs") || path.starts_with(top().join("tests")) {
            continue;
        }
        let wild = wild_locks(text);
        assert!(
            wild.is_empty(),
            "{}: {wild:?}; use `Lock` or `SharedLock` of `queuert::__task`",
            path.display()
        );
        locking += usize::from(text.contains("Lock<"));
    }
    assert!(locking >= 20, "only {locking} files with locks were found");
}

/// Files outside of what ships that spawn tasks and have other locks than those of the core, and why no task is spawned under
/// one of them.
const APART: [(&str, &str); 2] = [
    (
        "examples/patterns/src/bin/staged.rs",
        "an example has nothing of `__task`, which is not public; its lock is held in functions that spawn nothing",
    ),
    (
        "tests/observability/tests/tracing.rs",
        "a lock of the process keeps its tests apart while they spawn; no task takes it",
    ),
];

/// The rest of the workspace: cases, tests, examples and benchmarks, and the tests inside of what ships. They may spawn, and they
/// may lock; but what spawns tasks has no locks that do not notice it.
#[test]
fn whatever_spawns_tasks_has_locks_that_notice_it() {
    let mut open: Vec<PathBuf> = ["queuert", "adapters", "tests", "examples", "benches"]
        .map(|folder| top().join(folder))
        .into();
    let (mut files, mut spawning) = (0, 0);
    let mut apart: BTreeSet<&str> = APART.iter().map(|(path, _)| *path).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            if !path.ends_with("target") {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            continue;
        }
        // This file speaks of all of them.
        if path.extension().is_none_or(|extension| extension != "rs") || path.ends_with(file!()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        files += 1;
        let name = path.strip_prefix(top()).unwrap().to_str().unwrap();
        if path.ends_with("queuert/src/__task.rs") || apart.remove(name) {
            continue;
        }
        let (spawns, locks) = (wild_spawns(&text), wild_locks(&text));
        spawning += usize::from(!spawns.is_empty());
        assert!(
            spawns.is_empty() || locks.is_empty(),
            "{name}: {spawns:?} beside {locks:?}; use `Lock` of `queuert::__task`, or say in `APART` why that is safe"
        );
    }
    assert!(apart.is_empty(), "not there any more: {apart:?}");
    assert!(files > 500 && spawning > 50, "{spawning} of {files} files spawn");
}

#[test]
fn no_sample_of_the_reference_is_ignored() {
    for (path, text) in sources() {
        let fences = text
            .lines()
            .filter(|line| line.trim_start().starts_with("//") && line.contains("```"));
        for fence in fences {
            assert!(!fence.contains("ignore"), "{}: {fence}", path.display());
        }
    }
}

/// A dropped future must not be a riddle: every public async function says what it leaves behind. Cases of the
/// conformance kit are tests, and are run to their end.
#[test]
fn public_async_functions_say_what_a_dropped_future_leaves() {
    let mut count = 0;
    for (path, text) in sources() {
        if path.starts_with(top().join("tests")) {
            continue;
        }
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

/// The switches for sabotage are compiled into debug builds inside this repository only, and nothing else that is published
/// reads the environment.
#[test]
fn only_sabotage_reads_the_environment_and_only_in_our_builds() {
    let config = std::fs::read_to_string(top().join(".cargo/config.toml")).unwrap();
    assert!(config.contains("QUEUERT_SABOTAGE_BUILD"));
    let mut gates = 0;
    for (path, text) in sources() {
        if path.starts_with(top().join("tests")) || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let gate = r#"cfg!(debug_assertions) && option_env!("QUEUERT_SABOTAGE_BUILD").is_some()"#;
        let gated = path.ends_with("sabotage.rs") && text.contains(gate);
        gates += usize::from(gated);
        let reads = text.contains("env::var") || text.contains("option_env!");
        assert!(!reads || gated, "{} reads the environment", path.display());
    }
    assert_eq!(gates, 3, "memory, SQLite and Postgres");
}

/// Connect options hold passwords and keys, and print them. So does whatever holds them, unless it hides them.
#[test]
fn connect_options_are_hidden() {
    let mut fields = 0;
    for (file, text) in sources() {
        let mut in_struct = false;
        for line in text.lines() {
            let item = line
                .trim_start()
                .trim_start_matches("pub(crate) ")
                .trim_start_matches("pub ");
            let begins = item.starts_with("struct ") || item.starts_with("enum ");
            in_struct |= begins;
            if in_struct && line.contains("ConnectOptions") {
                fields += 1;
                assert!(
                    line.contains("Hidden<"),
                    "{}: `{}` would be printed with its password; wrap it in `Hidden`",
                    file.display(),
                    line.trim()
                );
            }
            if line.trim_end() == "}" || (begins && line.trim_end().ends_with(';')) {
                in_struct = false;
            }
        }
    }
    assert!(fields >= 4, "the walk finds nothing");
}

/// What a type prints is looked at in one test, for all public types: it has a list of them.
#[test]
fn every_public_type_is_known_to_the_test_of_secrets() {
    let secrets = std::fs::read_to_string(top().join("tests/observability/tests/secrets.rs")).unwrap();
    let mut count = 0;
    for (path, text) in sources() {
        if path.starts_with(top().join("tests")) || path.starts_with(top().join("queuert/derive")) {
            continue;
        }
        for line in shipped(&path, &text).lines() {
            let item = line.trim_start();
            let Some(rest) = item.strip_prefix("pub struct ").or(item.strip_prefix("pub enum ")) else {
                continue;
            };
            let name: String = rest
                .chars()
                .take_while(|character| character.is_alphanumeric())
                .collect();
            // The name in a macro.
            if name.is_empty() {
                continue;
            }
            count += 1;
            assert!(
                secrets.contains(&format!("\"{name}\"")),
                "{}: `{name}` is in no list of tests/observability/tests/secrets.rs: print it there with a secret inside, or \
                 say why it can hold none",
                path.display()
            );
        }
    }
    assert!(count > 120, "only {count} types were found");
}
