//! Mistakes that must not compile, with the messages that they give.
//!
//! To accept changed messages, run with `TRYBUILD=overwrite`, and read them as a newcomer would.

use std::process::Command;

/// Wording differs from one compiler to the next, so the messages are compared on the pinned one only.
fn is_pinned_compiler() -> bool {
    let pinned = include_str!("../../../rust-toolchain.toml");
    let channel = pinned.lines().find_map(|line| line.strip_prefix("channel = "));
    let channel = channel.expect("rust-toolchain.toml names a channel");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("rustc runs");
    String::from_utf8_lossy(&version.stdout).starts_with(&format!("rustc {} ", channel.trim_matches('"')))
}

#[test]
fn mistakes_do_not_compile() {
    if !is_pinned_compiler() {
        println!("skipped: not the compiler of rust-toolchain.toml");
        return;
    }
    trybuild::TestCases::new().compile_fail("../ui/*/*.rs");
}
