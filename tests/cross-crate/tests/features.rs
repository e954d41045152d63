//! What a user is told who switched off a feature that the code needs.

use std::path::Path;
use std::process::Command;

#[test]
fn without_the_feature_the_derive_is_missed_by_its_name() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-derive");
    let queuert = top.join("queuert").canonicalize().expect("the core is there");
    std::fs::create_dir_all(package.join("src")).expect("a directory can be made");
    let manifest = format!(
        "[package]\nname = \"without-derive\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         queuert = {{ path = {queuert:?}, default-features = false }}\n\
         serde = {{ version = \"1\", default-features = false, features = [\"std\", \"derive\"] }}\n\n\
         [profile.dev.package.\"*\"]\ndebug = false\n"
    );
    let program = "use queuert::JobTypes;\n\n\
         #[derive(serde::Serialize, serde::Deserialize)]\nstruct Fetch;\n\n\
         #[derive(JobTypes)]\nenum Import {\n    #[job(entry, output = ())]\n    Fetch(Fetch),\n}\n\nfn main() {}\n";
    // The versions that the repository is locked to are those that are at hand without a network.
    std::fs::copy(top.join("Cargo.lock"), package.join("Cargo.lock")).expect("the lock file can be copied");
    std::fs::write(package.join("Cargo.toml"), manifest).expect("a file can be written");
    std::fs::write(package.join("src/main.rs"), program).expect("a file can be written");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("it is in the target directory");
    let check = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet", "--color=never"])
        .current_dir(&package)
        // With these features and this profile, the crates that are at hand there are those that it needs.
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&check.stderr);
    assert!(!check.status.success());
    assert!(
        said.contains("cannot find derive macro `JobTypes` in this scope"),
        "{said}"
    );
    assert!(said.contains("it is only a trait, without a derive macro"), "{said}");
}
