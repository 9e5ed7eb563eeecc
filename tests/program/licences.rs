//! THIRD-PARTY.txt names every crate that the program links, with its version.

use std::process::Command;

const FILE: &str = include_str!("../../THIRD-PARTY.txt");

#[test]
fn every_crate_that_is_linked_has_its_licence_listed() {
    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(env!("CARGO_MANIFEST_DIR"));
    tree.args(["tree", "--locked", "--offline", "--package", "kl"]);
    // As `make dist` builds it. Macros run while it is compiled, and are not in it.
    tree.args([
        "--features",
        "dynamic-backends",
        "--edges",
        "normal,no-proc-macro",
    ]);
    tree.args(["--prefix", "none", "--format", "{p}"]);
    let output = tree.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {errors}");
    let packages = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut missing: Vec<String> = Vec::new();
    for line in packages.lines() {
        // As in `serde v1.0.228`; the workspace's own have a path after that.
        let mut words = line.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        if name.starts_with("kl") && line.contains('(') && line.contains('/') {
            continue;
        }
        let package = format!("{name} {}", version.trim_start_matches('v'));
        let headings = FILE.lines().filter_map(|line| line.strip_prefix("== "));
        let mut listed = headings.flat_map(|heading| heading.split(", "));
        if !listed.any(|listed| listed == package) {
            missing.push(package);
        }
    }
    missing.sort();
    missing.dedup();
    assert!(
        missing.is_empty(),
        "THIRD-PARTY.txt lacks {missing:?}: run scripts/licences.sh"
    );
}

#[test]
fn what_is_not_a_crate_is_listed_too() {
    for part in [
        "llama.cpp, ggml",
        "JSON for Modern C++",
        "vega-embed",
        "The standard library of Rust",
    ] {
        assert!(FILE.contains(part), "{part}");
    }
}
