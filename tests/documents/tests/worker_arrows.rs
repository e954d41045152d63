//! Keeps the arrows between the modules of the worker: rooms import one another in one direction only, and no module
//! imports itself through others. `queuert/src/worker/mod.rs` tells what the rooms are for.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rooms and single modules of the worker. Each may import those of the rows above it, and none of its own row.
const ROWS: [&[&str]; 8] = [
    &["user", "health", "contained"],
    &["pauses"],
    &["context"],
    &["attempt"],
    &["dispatch", "upkeep"],
    &["supervisor", "drain"],
    &["workers"],
    &["builder"],
];

/// Source texts by module, without tests: `attempt::end`, `context`.
type Modules = BTreeMap<String, String>;

fn row_of(module: &str) -> Option<usize> {
    let room = module.split("::").next().unwrap();
    ROWS.iter().position(|row| row.contains(&room))
}

/// The paths of a `use` tree that begins at the start of `text`, or the one path that is there: `a::{b, c::D}` gives `a::b` and
/// `a::c::D`.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    walk(text, "", &mut found);
    found
}

/// Adds the paths at the start of `text`, and returns the text behind them.
fn walk<'t>(text: &'t str, prefix: &str, found: &mut Vec<String>) -> &'t str {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let mut rest = text.trim_start();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = walk(rest, prefix, found).trim_start();
            match rest.strip_prefix(',') {
                Some(more) if more.trim_start().starts_with('}') => rest = more.trim_start(),
                Some(more) => {
                    rest = more;
                    continue;
                }
                None => {}
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
    }
    let name: String = rest.chars().take_while(|character| is_name(*character)).collect();
    rest = &rest[name.len()..];
    let path = [prefix, &name].concat();
    if let Some(more) = rest.strip_prefix("::") {
        return walk(more, &format!("{path}::"), found);
    }
    found.push(path);
    match rest.strip_prefix(" as ") {
        Some(alias) => alias.trim_start_matches(is_name),
        None => rest,
    }
}

/// The code of a file without its comments and without the tests at its end.
fn shipped(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that each module imports, and what is wrong with the way in which it does.
fn imports(modules: &Modules) -> (BTreeMap<&str, BTreeSet<&str>>, Vec<String>) {
    let (mut edges, mut problems) = (BTreeMap::new(), Vec::new());
    for (module, text) in modules {
        let code = shipped(text);
        let mut imported = BTreeSet::new();
        for relative in ["super::", "self::"] {
            if code.contains(relative) {
                problems.push(format!(
                    "{module} has a path with `{relative}`; write `crate::worker::` instead"
                ));
            }
        }
        for (start, root) in code.match_indices("crate::worker::") {
            for path in paths(&code[start + root.len()..]) {
                let known = modules.keys().map(String::as_str);
                let target = known
                    .filter(|known| path == **known || path.starts_with(&format!("{known}::")))
                    .max_by_key(|known| known.len());
                match target {
                    Some(target) if target != module => drop(imported.insert(target)),
                    Some(_) => {}
                    None => problems.push(format!(
                        "{module} imports {path}; name the module in which it is defined"
                    )),
                }
            }
        }
        edges.insert(module.as_str(), imported);
    }
    (edges, problems)
}

/// A cycle that `module` is part of, if there is one.
fn cycle<'m>(edges: &BTreeMap<&'m str, BTreeSet<&'m str>>, module: &'m str) -> Option<Vec<&'m str>> {
    let mut before = BTreeMap::new();
    let mut open = vec![module];
    while let Some(at) = open.pop() {
        for next in &edges[at] {
            if *next == module {
                let mut way = vec![module, at];
                while let Some(at) = before.get(way[way.len() - 1]) {
                    way.push(*at);
                }
                return Some(way);
            }
            if !before.contains_key(next) {
                before.insert(*next, at);
                open.push(*next);
            }
        }
    }
    None
}

/// Everything that is wrong with the arrows between these modules.
fn problems(modules: &Modules) -> Vec<String> {
    let (edges, mut problems) = imports(modules);
    for (module, imported) in &edges {
        let Some(row) = row_of(module) else {
            problems.push(format!("{module} is in no row of this test"));
            continue;
        };
        let room = |module: &str| module.split("::").next().unwrap().to_owned();
        for target in imported {
            let points_up = row_of(target).is_none_or(|of_target| of_target >= row);
            if points_up && room(module) != room(target) {
                problems.push(format!("{module} imports {target}: that arrow points the wrong way"));
            }
        }
        if let Some(way) = cycle(&edges, module) {
            problems.push(format!("{module} imports itself: {}", way.join(" ← ")));
        }
    }
    problems
}

fn modules_of(sources: &[(&str, &str)]) -> Modules {
    let owned = |(module, text): &(&str, &str)| ((*module).to_owned(), (*text).to_owned());
    sources.iter().map(owned).collect()
}

#[test]
fn turned_arrows_and_cycles_are_noticed() {
    let good = [
        ("user::abort", "use std::fmt;\npub struct AbortReason;"),
        (
            "context",
            "use crate::worker::user::abort::AbortReason;\npub struct Context;",
        ),
        (
            "attempt::end",
            "// never: use crate::worker::dispatch::pool::Pool;\nuse crate::worker::context::Context;",
        ),
        (
            "attempt::settler",
            "use crate::worker::attempt::{\n    end,\n    end::{Next as Step, begin},\n};\nuse crate::worker::user::abort::AbortReason;",
        ),
        (
            "dispatch::pool",
            "fn run() -> crate::worker::attempt::settler::Settler {}",
        ),
        (
            "upkeep::reaper",
            "use crate::worker::context::Context;\n#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::worker::builder::Builder;\n}",
        ),
    ];
    assert_eq!(problems(&modules_of(&good)), [""; 0]);
    for (module, text, expected) in [
        (
            "user::abort",
            "use crate::worker::attempt::end::Next;",
            "user::abort imports attempt::end: that arrow points the wrong way",
        ),
        (
            "attempt::end",
            "use crate::worker::{context::Context, dispatch::{pool::Pool}};",
            "attempt::end imports dispatch::pool: that arrow points the wrong way",
        ),
        (
            "dispatch::pool",
            "fn run() { crate::worker::upkeep::reaper::sweep() }",
            "dispatch::pool imports upkeep::reaper: that arrow points the wrong way",
        ),
        (
            "attempt::end",
            "use crate::worker::attempt::settler::Settler;",
            "attempt::end imports itself: attempt::end ← attempt::settler ← attempt::end",
        ),
        (
            "context",
            "use crate::worker::AbortReason;",
            "context imports AbortReason; name the module in which it is defined",
        ),
        (
            "attempt::end",
            "use super::settler::Settler;",
            "attempt::end has a path with `super::`; write `crate::worker::` instead",
        ),
        ("attic", "", "attic is in no row of this test"),
    ] {
        let mut modules = modules_of(&good);
        modules.insert(module.into(), text.into());
        let found = problems(&modules);
        assert!(found.iter().any(|problem| problem == expected), "{module}: {found:?}");
    }
}

#[test]
fn the_arrows_of_the_worker_point_one_way() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../queuert/src/worker");
    let (mut open, mut modules) = (vec![top.clone()], Modules::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let file = path.strip_prefix(&top).unwrap().with_extension("");
        let names: Vec<_> = file.iter().map(|name| name.to_str().unwrap()).collect();
        let module = match names.as_slice() {
            // The public face, which imports from everywhere, and the tests.
            ["mod"] | [.., "tests"] => continue,
            [module @ .., "mod"] => module.join("::"),
            module => module.join("::"),
        };
        modules.insert(module, std::fs::read_to_string(&path).unwrap());
    }
    assert!(modules.len() > 30, "only {} modules were found", modules.len());
    assert!(modules.contains_key("dispatch::local_queue") && modules.contains_key("context"));
    let problems = problems(&modules);
    assert!(problems.is_empty(), "{problems:#?}");
}
