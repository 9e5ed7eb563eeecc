//! `docs/REFERENCE.md` against the program: the flags that it lists.

use std::collections::BTreeSet;

use crate::session::Session;

const REFERENCE: &str = include_str!("../../docs/REFERENCE.md");

/// Flags that every command has, and that the reference need not list.
const COMMON: [&str; 2] = ["--help", "--version"];

/// The part of the reference under a heading of the second level, up to the next.
fn section(heading: &str) -> &'static str {
    let start = REFERENCE.find(&format!("\n## {heading}\n")).unwrap();
    let body = &REFERENCE[start + 1..];
    &body[..body.find("\n## ").unwrap_or(body.len())]
}

/// The long flags in the first column of a section's tables.
fn listed(heading: &str) -> BTreeSet<String> {
    let rows = section(heading)
        .lines()
        .filter(|line| line.starts_with("| `-"));
    let cells = rows.map(|row| {
        row.replace("\\|", "/")
            .split('|')
            .nth(1)
            .unwrap()
            .to_owned()
    });
    let words = cells.flat_map(|cell| {
        let words = cell.split([' ', ',', '`']).map(str::to_owned);
        words.collect::<Vec<_>>()
    });
    words.filter(|word| word.starts_with("--")).collect()
}

/// The long flags that a command's help describes.
fn described(session: &Session, command: &str) -> BTreeSet<String> {
    let help = session.ok(&format!("{command} --help")).stdout;
    let lines = help.lines().map(str::trim_start);
    let flags = lines.filter_map(|line| {
        let flag = match line.split_once(", --") {
            Some((short, rest)) if short.len() == 2 && short.starts_with('-') => rest,
            _ => line.strip_prefix("--")?,
        };
        let flag = flag.split([' ', '.']).next()?;
        Some(format!("--{flag}"))
    });
    flags
        .filter(|flag| !COMMON.contains(&flag.as_str()))
        .collect()
}

#[test]
fn the_reference_lists_every_flag() {
    let session = Session::new();
    assert_eq!(listed("kl"), described(&session, ""));
    for command in [
        "info",
        "convert",
        "merge",
        "compare",
        "report",
        "sensitivity",
        "recipe",
        "doctor",
    ] {
        let heading = format!("kl {command}");
        assert_eq!(listed(&heading), described(&session, command), "{command}");
    }
}
