//! Completions for bash, zsh and fish.
//!
//! clap's scripts lack two things that `kl` needs: llama.cpp's long flags with one dash, and paths
//! by their ending. So each such flag becomes an alias with a marked name, each ending a marked
//! word, and [`script`] puts the shell's own words in place of the marks.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use super::values::{Values, value_name, values};
use crate::cli::args;
use crate::cli::short_flags::SHORT_FLAGS;

/// Marks an alias that is spelled with one dash.
const ONE_DASH: &str = "one_dash_";

/// Marks the ending of files.
const ENDING: &str = "files_that_end_in_";

/// The script that a shell loads.
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut marked(), "kl", &mut script);
    let script = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => bash(&script),
        Shell::Zsh => zsh(&script),
        _ => fish(&script),
    }
}

/// The command line with marks.
fn marked() -> Command {
    args::command()
        .mut_args(marked_arg)
        .mut_subcommands(|subcommand| subcommand.mut_args(marked_arg))
}

fn marked_arg(arg: Arg) -> Arg {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = SHORT_FLAGS
        .iter()
        .find(|(_, other)| long.as_deref() == Some(other))
        .and_then(|(short, _)| short.strip_prefix('-'));
    let arg = match short {
        Some(short) => arg.visible_alias(format!("{ONE_DASH}{short}")),
        None => arg,
    };
    if !arg.get_num_args().is_some_and(|range| range.takes_values()) {
        return arg;
    }
    match values(&arg) {
        Values::Ending(ending) => {
            arg.value_parser(PossibleValuesParser::new([format!("{ENDING}{ending}")]))
        }
        // What clap knows already has a description of each word.
        Values::Words(_) if !arg.get_possible_values().is_empty() => arg,
        Values::Words(words) => arg.value_parser(PossibleValuesParser::new(words)),
        Values::Files => arg.value_hint(ValueHint::FilePath),
        // zsh would end the value's name at a colon.
        Values::Free => {
            let name = value_name(&arg).replace(':', " ");
            arg.value_hint(ValueHint::Other).value_name(name)
        }
    }
}

fn bash(script: &str) -> String {
    let script = script
        .replace(&format!("--{ONE_DASH}"), "-")
        // A word without a dash is a file, not a list of flags.
        .replace(" || ${COMP_CWORD} -eq 2 ]]", " ]]")
        .replace(
            "esac\n            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )",
            "esac\n            _kl_argument \"${cmd}\"",
        )
        // bash takes `--flag=value` apart.
        .replace(
            "    prev=\"$3\"\n",
            "    prev=\"$3\"\n    _kl_equals_sign\n",
        );
    let script = between(
        &script,
        &format!("COMPREPLY=($(compgen -W \"{ENDING}"),
        "\" -- \"${cur}\"))",
        |ending| format!("_kl_files {ending}"),
    );
    // Among the flags, clap lists the mark of an argument.
    let script = between(&script, &format!(" {ENDING}"), "\"", |_| "\"".to_owned());
    format!("{BASH}{script}")
}

fn zsh(script: &str) -> String {
    let script = script
        .replace(&format!("--{ONE_DASH}"), "-")
        // Stacked, `-ngl` would be three flags of one letter.
        .replace("_arguments_options=(-s ", "_arguments_options=(");
    between(&script, &format!(":({ENDING}"), ")", |ending| {
        format!(":_files -g \"*.{ending}\"")
    })
}

fn fish(script: &str) -> String {
    // clap's functions find the command after any flags, but know no flags with one dash.
    let rules = script
        .find("complete -c")
        .and_then(|start| script.get(start..));
    let rules = rules
        .unwrap_or_default()
        .replace(&format!("-l {ONE_DASH}"), "-o ")
        // Else fish reads `-ng` as `-n` with the value g.
        .replace(" -s ", " -o ");
    let rules = between(&rules, &format!("\"{ENDING}"), "\\t''\"", |ending| {
        format!("\"(__fish_kl_files {ending})\"")
    });
    format!("{FISH}{rules}{FISH_ARGUMENTS}")
}

/// The text with all that is between `start` and `end`, and these two, replaced.
fn between(text: &str, start: &str, end: &str, replaced: impl Fn(&str) -> String) -> String {
    let mut parts = text.split(start);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inner, rest) = part.split_once(end).unwrap_or((part, ""));
        result.push_str(&replaced(inner));
        result.push_str(rest);
    }
    result
}

/// What clap's script for bash calls.
const BASH: &str = include_str!("functions.bash");

/// What clap's script for fish calls.
const FISH: &str = include_str!("functions.fish");

/// clap's script completes no arguments by their ending.
const FISH_ARGUMENTS: &str =
    "complete -c kl -n \"__fish_kl_using_subcommand report\" -f -a \"(__fish_kl_files kls)\"\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_replaced() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            assert!(!script.contains(ONE_DASH), "{shell}");
            assert!(!script.contains(ENDING), "{shell}");
            for (short, _) in SHORT_FLAGS {
                let flag = match shell {
                    Shell::Fish => format!("-o {} ", &short[1..]),
                    _ => short.to_owned(),
                };
                assert!(script.contains(&flag), "{shell}: {short}");
            }
        }
    }

    #[test]
    fn what_is_replaced_is_in_claps_scripts() {
        let bash = script(Shell::Bash);
        assert!(bash.matches("_kl_argument \"${cmd}\"").count() > 5);
        assert!(bash.contains("prev=\"$3\"\n    _kl_equals_sign"));
        assert!(!bash.contains("-eq 2"));
        let zsh = script(Shell::Zsh);
        assert!(zsh.contains("_arguments_options=(-S"));
        assert!(script(Shell::Fish).contains("\ncomplete -c kl"));
    }
}
