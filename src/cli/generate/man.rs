//! The man page: clap_mangen renders the flags, under the headings of `kl --help`; the rest of the
//! page is here.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::cli::args;

/// Each release with its day.
const CHANGELOG: &str = include_str!("../../../CHANGELOG.md");

const ABOUT: &str = "KL divergence of a quantized GGUF from its original";

const DESCRIPTION: &str = include_str!("description.man");

/// The sections after the flags, but for the examples.
const FILES: &str = include_str!("files.man");

const EXIT_STATUS: &str = include_str!("exit_status.man");

/// The page kl(1) in roff.
pub fn page() -> String {
    let command = args::command().about(ABOUT);
    let all = command.get_subcommands();
    let subcommands: Vec<_> = all.filter(|one| one.get_name() != "help").collect();
    // A call's meaning stands apart from it, after two spaces.
    let classic = command.get_overridden_usage().map(ToString::to_string);
    let lines = classic.iter().flat_map(|usage| usage.lines());
    let starts = lines.filter_map(|line| line.trim().split("  ").next());
    let of_models = starts.filter(|call| call.contains("-m"));
    let mut calls: Vec<_> = of_models.map(|call| format!("{call} [OPTIONS]")).collect();
    calls.extend(subcommands.iter().copied().map(usage));

    let man = Man::new(command.clone().override_usage(calls.join("\n")))
        .title("KL")
        .date(released())
        .source(format!("kl {}", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut top = Vec::new();
    // Writing to memory cannot fail.
    let _ = man.render_title(&mut top);
    // Lines filled to both margins would put gaps into the lists.
    top.extend_from_slice(b".ad l\n");
    let _ = man.render_name_section(&mut top);
    let _ = man.render_synopsis_section(&mut top);
    let sections = subcommands.iter().copied().map(command_section);
    [
        &*String::from_utf8_lossy(&top),
        DESCRIPTION,
        &options(&command),
        ".SH COMMANDS\n",
        &sections.collect::<String>(),
        EXIT_STATUS,
        &examples(&command),
        FILES,
    ]
    .concat()
}

/// The day of this release, from a heading such as `## 0.1.0 - 2026-11-22`.
fn released() -> &'static str {
    let heading = concat!("## ", env!("CARGO_PKG_VERSION"), " - ");
    let mut lines = CHANGELOG.lines();
    lines
        .find_map(|line| line.strip_prefix(heading))
        .unwrap_or_default()
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
    let _ = Man::new(command).render_options_section(&mut rendered);
    // The items of a list start on lines of their own.
    String::from_utf8_lossy(&rendered).replace("\n\\- ", "\n.br\n\\- ")
}

fn command_section(command: &Command) -> String {
    let mut section = Roff::default();
    section.control("SS", [usage(command).as_str()]);
    let text = command.get_long_about().or_else(|| command.get_about());
    let about = text.map(ToString::to_string).unwrap_or_default();
    section.text([Inline::from(about)]);
    let all = options(command);
    let lines = all.lines().filter(|line| !line.starts_with(".S"));
    let options: String = lines.map(|line| format!("{line}\n")).collect();
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
    use clap::Arg;

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
        for section in [
            "INPUT",
            "\"MODEL AND DEVICES\"",
            "COMMANDS",
            "\"EXIT STATUS\"",
            "EXAMPLES",
        ] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{section}");
        }
        // A flag without help would end here.
        assert!(!page.contains("\n.TP\n.TP"));
    }
}
