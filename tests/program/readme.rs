//! README against the program: the flags it lists, and the report and the comparison that it shows.

use std::collections::BTreeSet;
use std::path::Path;

use crate::session::Session;

const README: &str = include_str!("../../README.md");

/// Flags that README names by llama.cpp's short spelling.
const SHORT: [(&str, &str); 11] = [
    ("-fa", "--flash-attn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sm", "--split-mode"),
    ("-mg", "--main-gpu"),
    ("-dev", "--device"),
    ("-ts", "--tensor-split"),
    ("-ot", "--override-tensor"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-nkvo", "--no-kv-offload"),
];

/// Flags that every command has, and that README need not list.
const COMMON: [&str; 2] = ["--help", "--version"];

/// The part of README under a heading, up to the next of the same or a higher level.
fn section(heading: &str) -> &'static str {
    let start = README.find(&format!("\n{heading}\n")).unwrap();
    let level = heading.split(' ').next().unwrap();
    let body = &README[start + heading.len() + 2..];
    let next = |level: &str| body.find(&format!("\n{level} "));
    let end = next(level).into_iter().chain(next("##")).min();
    &body[..end.unwrap_or(body.len())]
}

/// The long flags in the first column of a section's table.
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
    let mut flags = BTreeSet::new();
    for cell in cells {
        for word in cell.split([' ', ',', '`']) {
            let long = SHORT.iter().find(|(short, _)| *short == word);
            flags.extend(long.map(|(_, long)| (*long).to_owned()));
            if word.starts_with("--") {
                flags.insert(word.to_owned());
            }
        }
    }
    flags
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
fn readme_lists_every_flag() {
    let session = Session::new();
    // Short spellings stand for these two in the table.
    let short_only = |mut flags: BTreeSet<String>| {
        flags.retain(|flag| !["--verbose", "--quiet"].contains(&flag.as_str()));
        flags
    };
    assert_eq!(listed("## Flags"), short_only(described(&session, "")));
    let compare = "### kl compare REF OTHER...";
    assert_eq!(listed(compare), short_only(described(&session, "compare")));
    let report = "### kl report FILE...";
    assert_eq!(listed(report), short_only(described(&session, "report")));
}

/// The indented block of README that begins with this line, without its indentation.
fn block(start: &str) -> Vec<&'static str> {
    let lines = README
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
fn three_commands_lead_from_the_fixtures_to_a_page() {
    let session = Session::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    std::os::unix::fs::symlink(fixtures, session.path("fixtures")).unwrap();
    let commands = block("kl -m fixtures/tiny-f16.gguf -t");
    assert_eq!(commands.len(), 3);
    for command in commands {
        session.ok(command.strip_prefix("kl ").unwrap());
    }
    let page = String::from_utf8(session.read("report.html")).unwrap();
    for quant in ["f16", "q8_0", "q4_K_M", "q2_K"] {
        assert!(page.contains(&format!("tiny-{quant}")));
    }
}

#[cfg(unix)]
#[test]
fn readme_shows_the_report_and_the_comparison_that_the_program_prints() {
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
    assert_eq!(shapes(block(title)), shapes(report.iter().copied()));
    let title = "3 models against ref.gz";
    let end = run.stdout.rfind(title).unwrap();
    let comparison = run.stdout[end..].lines();
    assert_eq!(shapes(block(title)), shapes(comparison));
}
