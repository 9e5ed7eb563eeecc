//! `docs/REFERENCE.md` against the program: the flags that it lists.

use std::collections::BTreeSet;

use crate::session::Session;

const REFERENCE: &str = include_str!("../../docs/REFERENCE.md");

/// The part of the reference under a heading of the second level, up to the next.
fn section(heading: &str) -> &'static str {
    let start = REFERENCE.find(&format!("\n## {heading}\n")).unwrap();
    let body = &REFERENCE[start + 1..];
    &body[..body.find("\n## ").unwrap_or(body.len())]
}

/// The long flags in the first column of a section's tables.
fn listed(heading: &str) -> BTreeSet<String> {
    let text = section(heading).replace("\\|", "/");
    let rows = text.lines().filter(|line| line.starts_with("| `-"));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    let words = cells.flat_map(|cell| cell.split([' ', ',', '`']));
    let flags = words.filter(|word| word.starts_with("--"));
    flags.map(str::to_owned).collect()
}

/// The long flags that a command's help describes, but for those that every command has.
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
    let own = flags.filter(|flag| !["--help", "--version"].contains(&flag.as_str()));
    own.collect()
}

#[test]
fn the_reference_lists_every_flag() {
    let session = Session::new();
    assert_eq!(listed("kl"), described(&session, ""));
    let commands = "info convert merge compare report sensitivity recipe doctor";
    for command in commands.split(' ') {
        let heading = format!("kl {command}");
        assert_eq!(listed(&heading), described(&session, command), "{command}");
    }
}
