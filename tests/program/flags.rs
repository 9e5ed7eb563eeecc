//! The flags that messages name. They are defined in `src`, but most messages that name one are written where the fault
//! is found, in the crates below: none may name a flag that is gone or spelled otherwise.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::session::Session;

/// Flags of other programs: of llama.cpp's llama-quantize, llama-gguf-split and llama-perplexity, and of
/// gguf-py's gguf_new_metadata.
const OF_OTHERS: [&str; 6] = [
    "--alignment",
    "--allow-requantize",
    "--merge",
    "--output-tensor-type",
    "--save-all-logits",
    "--token-embedding-type",
];

/// The commands, each of which has its own flags.
const COMMANDS: [&str; 11] = [
    "",
    "check",
    "compare",
    "convert",
    "doctor",
    "info",
    "merge",
    "pick",
    "recipe",
    "report",
    "sensitivity",
];

/// The flags of two dashes in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let flag = Regex::new(r"(?:^|[^\w-])(--[a-z][a-z0-9-]+)").unwrap();
    let found = flag.captures_iter(text);
    found.map(|found| found[1].to_owned()).collect()
}

/// The source files of crates in a folder, without tests and benches.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "benches", "vendor", "target"].contains(&&*name) {
            sources(&path, into);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            into.push(path);
        }
    }
}

#[test]
fn messages_name_flags_that_exist() {
    let session = Session::new();
    let help = COMMANDS.map(|command| session.ok(&format!("{command} --help")).stdout);
    let mut known: BTreeSet<String> = help.iter().flat_map(|help| flags(help)).collect();
    known.extend(OF_OTHERS.map(str::to_owned));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["crates", "formats"] {
        sources(&root.join(folder), &mut files);
    }
    let (mut n_named, mut unknown) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().filter(|line| !line.trim().starts_with("//"));
        for flag in flags(&Vec::from_iter(lines).join("\n")) {
            n_named += 1;
            if !known.contains(&flag) {
                unknown.push(format!("{}: {flag}", file.display()));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
    // The walk found the crates.
    assert!(n_named > 100, "{n_named}");
}
