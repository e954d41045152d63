//! Finds the migrations that sqlxmq ships as files next to its source: it leaves running them to whoever uses it.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let cargo = std::env::var("CARGO").expect("cargo names itself");
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("there are packages");
    let sqlxmq = packages
        .iter()
        .find(|package| package["name"] == "sqlxmq")
        .expect("sqlxmq is a dependency");
    let manifest = sqlxmq["manifest_path"].as_str().expect("a package has a manifest");
    let migrations = Path::new(manifest).with_file_name("migrations");
    println!("cargo::rustc-env=SQLXMQ_MIGRATIONS={}", migrations.display());
}
