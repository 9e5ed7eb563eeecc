//! Flags and commands: the only place that prints or reads the environment.
//!
//! What comes from outside must not end it: what could panic is denied, and an exception says why.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

/// A line on stderr. Where nobody reads it any more, the work goes on.
macro_rules! say {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($message)*);
    }};
}

mod args;
mod compare;
mod conversion;
mod convert;
#[expect(
    clippy::indexing_slicing,
    reason = "places in its own buffer, whose length it keeps"
)]
mod direct_file;
mod evaluation;
mod extras;
mod heads;
mod info;
mod job;
mod output;
mod paths;
mod progress;
mod prompts;
mod read;
mod reference;
mod results;
mod resume;
mod series;
mod settings;
mod setup;
mod short_flags;
mod sidecar;
mod stop;
mod text;
mod token_log;
mod verify;
mod warning;
mod write;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::engine::follow_log;
use args::Args;
use settings::{Command, RunSettings, UsageError};
use warning::Warning;

/// Wrong use: flags that do not go together.
const EXIT_USAGE: u8 = 2;

/// A model that fails a condition of `--fail-if`.
const EXIT_CONDITION: u8 = 3;

/// Runs one call of the program: 0, 1 could not be done, 2 wrong use, 3 a condition failed. An
/// error is one line on stderr.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A defect of this program, should there be one, is one line too.
    std::panic::set_hook(Box::new(|panic| {
        let panic = panic.to_string().replace('\n', " ");
        say!("kl: internal error, please report: {panic}");
    }));
    let args = short_flags::expand(args);
    // No flag's value comes first: `kl -m info` names a file.
    match args.get(1).and_then(|arg| arg.to_str()) {
        Some("info") => {
            return subcommand("kl info", &args, |args| {
                info::run(&args).map(|()| Outcome::Done)
            });
        }
        Some("convert") => {
            return subcommand("kl convert", &args, |args| {
                convert::run(&args).map(|()| Outcome::Done)
            });
        }
        Some("compare") => return subcommand("kl compare", &args, compare::run),
        _ => {}
    }
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => return show_usage(&error, "kl"),
    };
    let command = match Command::try_from(args).and_then(|command| {
        paths::check(&command)?;
        Ok(command)
    }) {
        Ok(command) => command,
        Err(error) => return exit_code(Err(error.into())),
    };
    follow_log(command.run().verbose);
    stop::listen();
    exit_code(match command {
        Command::Write(settings) => write::run(&settings).map(|()| Outcome::Done),
        Command::Read(settings) => read::run(&settings),
    })
}

/// Runs a subcommand, whose arguments come after its name.
fn subcommand<A: Parser>(
    name: &str,
    args: &[OsString],
    run: impl Fn(A) -> anyhow::Result<Outcome>,
) -> ExitCode {
    match A::try_parse_from(args.iter().skip(1)) {
        Ok(args) => {
            stop::listen();
            exit_code(run(args))
        }
        Err(error) => show_usage(&error, name),
    }
}

fn exit_code(done: anyhow::Result<Outcome>) -> ExitCode {
    match done {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::ConditionFailed) => ExitCode::from(EXIT_CONDITION),
        Err(error) => {
            say!("kl: {}", one_line(&error));
            if error.is::<UsageError>() {
                return ExitCode::from(EXIT_USAGE);
            }
            if stop::asked() {
                stop::die();
            }
            ExitCode::FAILURE
        }
    }
}

/// How a run ends that could be done.
enum Outcome {
    Done,
    /// As asked, this is not to count as success.
    ConditionFailed,
}

/// clap's own words: help and version as they are, an error in one line. `command` has the help.
fn show_usage(error: &clap::Error, command: &str) -> ExitCode {
    if !error.use_stderr() {
        // A pipe that closes is no error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    // What is wrong, and what is listed below it, up to the advice.
    let advice = ["Usage:", "For more information", "tip:"];
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !advice.iter().any(|advice| line.starts_with(advice)))
        .collect();
    let said = said.join(" ");
    say!(
        "kl: {} ({command} --help shows the flags)",
        said.trim().trim_start_matches("error: ")
    );
    ExitCode::from(EXIT_USAGE)
}

impl Command {
    fn run(&self) -> &RunSettings {
        match self {
            Self::Write(settings) => &settings.run,
            Self::Read(settings) => &settings.run,
        }
    }
}

/// An error and its causes, in one line.
fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Results, and nothing else, go to stdout.
fn print_result(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn warn(warning: &Warning) {
    say!("kl: warning: {warning}");
}
