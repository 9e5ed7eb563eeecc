//! The words of clap: help as it is, an error in one line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{EXIT_USAGE, args};

/// Prints clap's help, or its error about `args`, and returns the exit code.
pub fn show(error: &Error, args: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is not an error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
    } else {
        say!("kl: {}", one_line(error, args));
    }
    ExitCode::from(EXIT_USAGE)
}

/// An error in one line: what is wrong, a similar name if there is one, and whose help to read.
pub(super) fn one_line(error: &Error, args: &[OsString]) -> String {
    let command = args::command();
    let subcommand = |name: &str| Some(format!("kl {}", command.find_subcommand(name)?.get_name()));
    let known = args.get(1).and_then(|arg| subcommand(arg.to_str()?));
    let called = known.as_deref().unwrap_or("kl");
    if let Some(ContextValue::String(stray)) = error.get(ContextKind::InvalidSubcommand) {
        // After a flag, clap calls any stray argument a subcommand; and a file may come first.
        let is_file = error.kind() == ErrorKind::ArgumentConflict || stray.contains(['.', '/']);
        if let Some(name) = subcommand(stray) {
            return format!("'{stray}' must be the first argument ({name} --help shows how)");
        } else if is_file {
            return format!(
                "unexpected argument '{stray}': each file needs its flag, each model its own -m"
            );
        }
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let (tips, others): (Vec<&str>, Vec<&str>) = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .partition(|line| line.starts_with("tip:"));
    let joined = others.join(" ");
    let fault = joined.trim().trim_start_matches("error: ");
    // The other tips explain how to pass a flag as a value.
    let tip = tips.iter().find(|tip| tip.contains("similar"));
    let similar = tip.map(|tip| tip.trim_start_matches("tip:").trim().to_owned());
    let advice = hint(error, args).or(similar);
    let hint = advice.map_or_else(String::new, |advice| format!("; {advice}"));
    let message = plain_words(fault);
    format!("{message}{hint} ({called} --help shows the flags)")
}

/// Advice on an error where clap's tip, if it has one, would lead astray.
fn hint(error: &Error, args: &[OsString]) -> Option<String> {
    let named = |kind| error.get(kind).map(ToString::to_string);
    let flag = named(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let of_other_commands = || of_other_commands(&flag?).map(str::to_owned);
            of_other_tools(args).or_else(of_other_commands)
        }
        ErrorKind::ValueValidation => of_other_tools(args),
        ErrorKind::ArgumentConflict if flag == named(ContextKind::PriorArg) => {
            Some("give it once".to_owned())
        }
        ErrorKind::ArgumentConflict => {
            // The order of the two depends on the command line.
            let both = [flag?, named(ContextKind::PriorArg)?];
            let flags = both.iter().filter_map(|name| name.split(' ').next());
            let names: Vec<&str> = flags.collect();
            let inputs = ["--text-path", "--prompts", "--score", "--stride"];
            let input = names.iter().find(|name| inputs.contains(name))?;
            if names.contains(&"--read-path") {
                let why = "a reference holds its own text and windows";
                return Some(format!("{why}: omit {input}"));
            }
            let is_of_prompts = *input == "--text-path" && !names.contains(&"--prompts");
            is_of_prompts.then(|| "prompts are read from --prompts".to_owned())
        }
        _ => None,
    }
}

/// Hints for the flags of a command line that are llama-perplexity's, all at once.
fn of_other_tools(args: &[OsString]) -> Option<String> {
    let flags = args
        .iter()
        .filter_map(|arg| arg.to_str()?.split('=').next());
    let hint = |flag| Some(format!("instead of {flag}: {}", of_llama_perplexity(flag)?));
    let mut hints: Vec<_> = flags.filter_map(hint).collect();
    hints.dedup();
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// kl's words for a flag of llama-perplexity.
fn of_llama_perplexity(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "--hf-token" => "the token is that of the environment (HF_TOKEN)",
        "--model-url" => "get the file first (curl -LO URL), then -m FILE; -hf loads by name",
        "-f" | "--file" => "the text is -t TEXT",
        "--kl-divergence-base" | "--save-all-logits" => {
            "-w REF writes a reference, -r REF reads one; both can be llama.cpp's"
        }
        "--kl-divergence" => "-r REF evaluates against a reference, llama.cpp's too",
        "--chunks" => "it is --max-windows N",
        "--ppl-stride" => "it is --stride N",
        "--threads-batch" => "it is --threads N",
        "--perplexity" => "every report has the perplexity",
        "-p" | "--prompt" => "prompts are read from --prompts FILE",
        "--jinja" | "--chat-template" => {
            "--prompts uses the model's template, or that of --chat-template-file"
        }
        "--lora" | "--lora-scaled" => "merge the adapter into the model first",
        _ => return None,
    })
}

/// A hint for a flag that this command does not have, but another one.
fn of_other_commands(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "--html" | "--csv" | "--markdown" | "--model-card" | "--pair" => {
            "kl report has it, for the sidecars (.kls) that an evaluation writes"
        }
        "--fail-if" | "--allow-excluded" => "an evaluation (kl -r) and kl compare have it",
        _ => return None,
    })
}

/// A message of clap's without the words of Rust's parsers.
fn plain_words(message: &str) -> String {
    let mut message = message.to_owned();
    for (of_rust, plain) in [
        ("invalid digit found in string", "expected a whole number"),
        (
            "cannot parse integer from empty string",
            "expected a whole number",
        ),
        (
            "number too large to fit in target type",
            "the number is too large",
        ),
        (
            "number too small to fit in target type",
            "the number is too small",
        ),
    ] {
        message = message.replace(of_rust, plain);
    }
    in_range(&message).unwrap_or(message)
}

/// A message of clap's about a number that is out of range, with the range in words.
fn in_range(message: &str) -> Option<String> {
    let (start, range) = message.rsplit_once(" is not in ")?;
    let (start, _number) = start.rsplit_once(' ')?;
    let (least, most) = range.split_once("..=")?;
    Some(format!("{start} expected a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{names, rules, short_flags};

    /// Returns what clap prints of a call in a terminal of 80 columns.
    fn printed(line: &str) -> String {
        let command = args::command().term_width(80);
        let mut command = command.mut_subcommands(|subcommand| subcommand.term_width(80));
        let shown = command
            .try_get_matches_from_mut(line.split(' '))
            .unwrap_err();
        shown.render().to_string()
    }

    /// The line on stderr of a call that is refused.
    fn refused(line: &str) -> String {
        let args = match short_flags::expand(line.split(' ').map(OsString::from)) {
            Ok(args) => args,
            Err(message) => return message,
        };
        let message = match args::parse(&args) {
            Ok(cli) => {
                let shelf = (
                    cli.classic.evaluate.quants.clone(),
                    cli.classic.evaluate.discard,
                );
                let named =
                    |_| names::check(&args, &shelf.0, shelf.1, false).map_err(str::to_owned);
                rules::check(cli).and_then(named).unwrap_err()
            }
            Err(error) => one_line(&error, &args),
        };
        assert!(!message.contains('\n'), "{line}: one line");
        message
    }

    #[test]
    fn help_fits_80_columns() {
        for (name, line) in [
            ("short", "kl -h"),
            ("long", "kl --help"),
            ("info", "kl info --help"),
            ("convert", "kl convert --help"),
            ("compare", "kl compare --help"),
            ("compare_short", "kl compare -h"),
            ("report", "kl report --help"),
            ("sensitivity", "kl sensitivity --help"),
            ("recipe", "kl recipe --help"),
            ("recipe_short", "kl recipe -h"),
            ("check", "kl check --help"),
            ("doctor", "kl doctor --help"),
            ("pick", "kl pick --help"),
        ] {
            let help = printed(line);
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            insta::assert_snapshot!(name, help);
        }
    }

    #[test]
    fn short_help_fits_a_screen_and_stands_for_no_arguments() {
        assert!(printed("kl -h").lines().count() <= 40);
        assert_eq!(printed("kl"), printed("kl -h"));
        assert_eq!(printed("kl help"), printed("kl --help"));
        assert_eq!(printed("kl help convert"), printed("kl convert --help"));
    }

    /// The calls are those of the snapshot: add one there, after a `$`, and rewrite it.
    #[test]
    fn refusals_name_the_flag_and_what_to_do() {
        let snapshot = include_str!("snapshots/kl__cli__usage__tests__refusals.snap");
        let calls = snapshot.lines().filter_map(|line| line.strip_prefix("$ "));
        let lines = calls.map(|call| format!("$ {call}\nkl: {}\n", refused(call)));
        insta::assert_snapshot!("refusals", Vec::from_iter(lines).join("\n"));
    }
}
