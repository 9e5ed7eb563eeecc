//! The crates of the program: THIRD-PARTY.txt names each that is linked, with its version, and each is
//! what deny.toml allows, as far as cargo alone can tell. `make deny` checks the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const FILE: &str = include_str!("../../THIRD-PARTY.txt");

const DENY: &str = include_str!("../../deny.toml");

/// The crates of the program as `make dist` builds it, by these edges of `cargo tree`: each a line of
/// its name, its version and its licence. The workspace's own are left out.
fn crates(edges: &str) -> BTreeSet<(String, String, String)> {
    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(env!("CARGO_MANIFEST_DIR"));
    tree.args(["tree", "--locked", "--offline", "--package", "kl"]);
    tree.args(["--features", "dynamic-backends", "--edges", edges]);
    tree.args(["--prefix", "none", "--format", "{p}|{l}"]);
    let output = tree.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {errors}");
    let mut crates = BTreeSet::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // As in `serde v1.0.228|MIT OR Apache-2.0`; after the version of a crate that is not of
        // crates.io comes where it is from.
        let (package, licence) = line.split_once('|').unwrap();
        let words = package.split(' ').filter(|word| *word != "(proc-macro)");
        let words = Vec::from_iter(words);
        if words[0].starts_with("kl") && words.len() > 2 {
            continue;
        }
        assert_eq!(words.len(), 2, "{package} is not of crates.io");
        let version = words[1].trim_start_matches('v');
        let licence = licence.trim_end_matches(" (*)");
        crates.insert([words[0], version, licence].map(str::to_owned).into());
    }
    assert!(!crates.is_empty());
    crates
}

/// The first strings in double quotes of a list of deny.toml's lines.
fn listed(list: &str) -> Vec<&'static str> {
    let start = DENY.find(&format!("\n{list} = [")).unwrap();
    let lines = DENY[start..].lines().skip(2);
    let entries = lines.take_while(|line| *line != "]");
    entries.filter_map(|line| line.split('"').nth(1)).collect()
}

/// Whether a licence such as `(MIT OR Apache-2.0) AND Unicode-3.0` asks for no more than those that
/// are allowed.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    licence.split(" AND ").all(|part| {
        let mut choices = part.split(" OR ").flat_map(|choice| choice.split('/'));
        choices.any(|choice| allowed.contains(&choice.trim_matches(['(', ')'])))
    })
}

#[test]
fn every_crate_is_there_once_and_under_a_licence_that_is_allowed() {
    let (allowed, skipped) = (listed("allow"), listed("skip"));
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, version, licence) in crates("normal,build") {
        assert!(is_allowed(&licence, &allowed), "{name}: {licence}");
        versions.entry(name).or_default().push(version);
    }
    versions.retain(|name, versions| {
        let mut skipped = skipped.iter().map(|skip| skip.split('@').next());
        versions.len() > 1 && !skipped.any(|skip| skip == Some(name))
    });
    assert!(versions.is_empty(), "in several versions: {versions:?}");
}

#[test]
fn all_that_is_linked_has_its_licence_listed() {
    let mut missing: Vec<String> = Vec::new();
    // Macros run while it is compiled, and are not in it.
    for (name, version, _) in crates("normal,no-proc-macro") {
        let package = format!("{name} {version}");
        let headings = FILE.lines().filter_map(|line| line.strip_prefix("== "));
        let mut listed = headings.flat_map(|heading| heading.split(", "));
        if !listed.any(|listed| listed == package) {
            missing.push(package);
        }
    }
    let parts = ["llama.cpp, ggml", "JSON for Modern C++", "vega-embed"].into_iter();
    let parts = parts.chain(["The standard library of Rust"]);
    missing.extend(
        parts
            .filter(|part| !FILE.contains(*part))
            .map(str::to_owned),
    );
    assert!(
        missing.is_empty(),
        "THIRD-PARTY.txt lacks {missing:?}: run scripts/licences.sh"
    );
}
