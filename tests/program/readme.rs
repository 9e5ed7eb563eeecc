//! The docs against the program: the flags they list, and the reports they show.

use std::collections::BTreeSet;
use std::path::Path;

use crate::session::Session;

const READING: &str = include_str!("../../docs/READING.md");
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
    for command in ["info", "convert", "merge", "compare", "report"] {
        let heading = format!("kl {command}");
        assert_eq!(listed(&heading), described(&session, command), "{command}");
    }
}

/// The indented block of a page that begins with this line, without its indentation.
fn block(page: &'static str, start: &str) -> Vec<&'static str> {
    let lines = page
        .lines()
        .skip_while(|line| !line.trim_start().starts_with(start));
    let block = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let mut block: Vec<&str> = block
        .map(|line| line.get(4..).unwrap_or_default())
        .collect();
    while block.last().is_some_and(|line| line.is_empty()) {
        block.pop();
    }
    block
}

/// A line with every number as `#` and every run of spaces and dashes as one: digits and units of
/// time depend on the machine, and widths on digits.
fn shape(line: &str) -> String {
    let line = line.replace(" ms", " s");
    let words = line.split(' ').filter(|word| !word.is_empty());
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '+');
    let words = words.map(|word| {
        let mut shape = String::new();
        for c in word.replace("e-", "-").chars() {
            match is_number(c) {
                true if shape.ends_with('#') => {}
                true => shape.push('#'),
                false => shape.push(c),
            }
        }
        shape
    });
    words.collect::<Vec<_>>().join(" ")
}

fn shapes<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<String> {
    lines.into_iter().map(shape).collect()
}

#[cfg(unix)]
#[test]
fn docs_show_the_report_and_the_comparison_that_the_program_prints() {
    let session = Session::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    std::os::unix::fs::symlink(fixtures, session.path("fixtures")).unwrap();
    session.ok("-m @f16 -t @eval -w ref.gz -q");
    let models = ["q8_0", "q4_K_M", "q2_K"].map(|quant| format!("-m fixtures/tiny-{quant}.gguf"));
    let run = session.ok(&format!("{} -r ref.gz -q", models.join(" ")));
    let title = "fixtures/tiny-q4_K_M.gguf against ref.gz";
    let report = run.stdout.lines().skip_while(|line| *line != title);
    let report: Vec<&str> = report.collect();
    let end = report
        .windows(2)
        .position(|pair| pair[0].is_empty() && pair[1].contains("against"));
    let report = &report[..end.unwrap()];
    assert_eq!(
        shapes(block(READING, title)),
        shapes(report.iter().copied())
    );
    let title = "3 models against ref.gz";
    let end = run.stdout.rfind(title).unwrap();
    let comparison = run.stdout[end..].lines();
    assert_eq!(shapes(block(READING, title)), shapes(comparison));
}
