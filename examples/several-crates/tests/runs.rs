//! Runs the example, and asserts that it prints what the comment on its top says.

#[test]
fn it_prints_what_it_says() {
    let program = env!("CARGO_BIN_EXE_several-crates");
    let output = std::process::Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let source = include_str!("../src/main.rs");
    let block = source.lines().skip_while(|line| *line != "//! ```text").skip(1);
    let documented: Vec<&str> = block
        .take_while(|line| *line != "//! ```")
        .map(|line| line.strip_prefix("//! ").unwrap())
        .collect();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.lines().collect::<Vec<_>>(), documented);
}
