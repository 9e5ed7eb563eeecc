//! The man page: clap_mangen renders the flags, under the headings of `kl --help`; the rest of the
//! page is here.

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::cli::args;
use crate::cli::short_flags::SHORT_FLAGS;

/// Each release with its day.
const CHANGELOG: &str = include_str!("../../../CHANGELOG.md");

const ABOUT: &str = "KL divergence of a quantized GGUF from its original";

const DESCRIPTION: &str = include_str!("description.man");

/// What follows the flags, but for the examples.
const FILES: &str = include_str!("files.man");

const EXIT_STATUS: &str = include_str!("exit_status.man");

/// The page kl(1) in roff.
pub fn page() -> String {
    let command = args::command().about(ABOUT);
    let subcommands: Vec<&Command> = command
        .get_subcommands()
        .filter(|subcommand| subcommand.get_name() != "help")
        .collect();

    let mut page = Roff::default();
    let source = format!("kl {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["KL", "1", released(), &source, "User Commands"]);
    // Lines filled to both margins would put gaps into the lists.
    page.control("ad", ["l"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("kl - {ABOUT}"))]);
    page.control("SH", ["SYNOPSIS"]);
    synopsis(&mut page, &command, &subcommands);
    let mut page = page.to_roff();

    page.push_str(DESCRIPTION);
    page.push_str(".SH OPTIONS\n");
    page.push_str(&options(&command));
    page.push_str(".SH COMMANDS\n");
    for subcommand in subcommands {
        page.push_str(&command_section(subcommand));
    }
    page.push_str(EXIT_STATUS);
    page.push_str(&examples(&command));
    page.push_str(FILES);
    page
}

/// The day of this release, from a heading such as `## 0.1.0 - 2026-11-22`.
fn released() -> &'static str {
    let heading = concat!("## ", env!("CARGO_PKG_VERSION"), " - ");
    let mut lines = CHANGELOG.lines();
    lines
        .find_map(|line| line.strip_prefix(heading))
        .unwrap_or_default()
}

/// A line for each way to call the program.
fn synopsis(page: &mut Roff, command: &Command, subcommands: &[&Command]) {
    let classic = command.get_overridden_usage().map(ToString::to_string);
    let mut calls: Vec<String> = Vec::new();
    for line in classic.iter().flat_map(|usage| usage.lines()) {
        // What a call does stands apart from it, after two spaces.
        let call = line.trim().split("  ").next().unwrap_or_default();
        if call.contains("-m") {
            calls.push(format!("{call} [OPTIONS]"));
        }
    }
    calls.extend(subcommands.iter().map(|subcommand| usage(subcommand)));
    for (i, call) in calls.iter().enumerate() {
        if i > 0 {
            page.control("br", []);
        }
        page.text([bold("kl"), roman(call.strip_prefix("kl").unwrap_or(call))]);
    }
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage: ").trim().to_owned()
}

/// The flags and arguments of a command, below its headings.
fn options(command: &Command) -> String {
    // clap_mangen leaves out the help of what `-h` does not list.
    let command = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let mut rendered = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(command.clone()).render_options_section(&mut rendered);
    // The items of a list start on lines of their own.
    let mut rendered = String::from_utf8_lossy(&rendered)
        .replace("\n\\- ", "\n.br\n\\- ")
        .replace("\n\n.br\n", "\n\n")
        .replace("\n.sp\n.br\n", "\n.sp\n")
        // A line that continues an item would break it.
        .replace("\n  ", " ");
    for heading in command.get_arguments().filter_map(Arg::get_help_heading) {
        let upper = format!(".SH \"{}\"\n", heading.to_uppercase());
        let one_word = upper.replace('"', "");
        let heading = format!(".SS {heading}\n");
        rendered = rendered
            .replace(&upper, &heading)
            .replace(&one_word, &heading);
    }
    for (short, long) in SHORT_FLAGS {
        let bold = |flag: &str| format!("\\fB{}\\fR", flag.replace('-', "\\-"));
        let header = format!(".TP\n{}", bold(long));
        let both = format!(".TP\n{}, {}", bold(short), bold(long));
        rendered = rendered.replace(&header, &both);
        rendered = rendered.replace(&format!(" ({})", short.replace('-', "\\-")), "");
    }
    rendered
}

fn command_section(command: &Command) -> String {
    let mut section = Roff::default();
    section.control("SS", [usage(command).as_str()]);
    let about = command.get_long_about().or_else(|| command.get_about());
    section.text([Inline::from(
        about.map(ToString::to_string).unwrap_or_default(),
    )]);
    let options = options(command);
    let options = options.lines().filter(|line| !line.starts_with(".S"));
    let options: String = options.map(|line| format!("{line}\n")).collect();
    format!("{}{options}", section.to_roff())
}

/// The examples of `kl --help`: each call, and what it does.
fn examples(command: &Command) -> String {
    let mut section = Roff::default();
    section.control("SH", ["EXAMPLES"]);
    let help = command.get_after_long_help().map(ToString::to_string);
    let lines = help.iter().flat_map(|help| help.lines());
    for line in lines.filter(|line| line.starts_with("  kl ")) {
        if let Some((call, meaning)) = line.trim().split_once("  ") {
            section.control("TP", []);
            section.text([bold(call)]);
            section.text([roman(meaning.trim())]);
        }
    }
    section.to_roff()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelog_has_the_day_of_this_release() {
        let fields: Vec<&str> = released().split('-').collect();
        assert_eq!(fields.len(), 3, "{}", released());
        assert!(fields.iter().all(|field| field.parse::<u32>().is_ok()));
    }

    #[test]
    fn the_page_has_every_flag_and_section() {
        let page = page();
        let command = args::command();
        let subcommands = command
            .get_subcommands()
            .filter(|one| one.get_name() != "help");
        for command in [&command].into_iter().chain(subcommands) {
            for flag in command.get_arguments().filter_map(Arg::get_long) {
                let flag = format!("\\fB\\-\\-{}\\fR", flag.replace('-', "\\-"));
                assert!(page.contains(&flag), "{flag}");
            }
        }
        for (short, _) in SHORT_FLAGS {
            assert!(
                page.contains(&format!("\\fB{}\\fR, ", short.replace('-', "\\-"))),
                "{short}"
            );
        }
        let sections = page.lines().filter_map(|line| line.strip_prefix(".SH "));
        let sections: Vec<&str> = sections.collect();
        assert_eq!(
            sections,
            [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "COMMANDS",
                "\"EXIT STATUS\"",
                "EXAMPLES",
                "FILES",
                "\"SEE ALSO\""
            ]
        );
        // A flag without help would end here.
        assert!(!page.contains("\n.TP\n.TP"));
    }
}
