//! Flags and commands: the only place that prints or reads the environment.

/// A line on stderr. Where nobody reads it any more, the work goes on.
macro_rules! say {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($message)*);
    }};
}

mod args;
mod output;
mod paths;
mod progress;
mod read;
mod reference;
mod results;
mod settings;
mod setup;
mod short_flags;
mod sidecar;
mod text;
mod warning;
mod write;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;

use crate::engine::follow_log;
use args::Args;
use settings::{Command, RunSettings};
use warning::Warning;

/// Wrong use: flags that do not go together.
const EXIT_USAGE: u8 = 2;
/// Stopped by the user, as shells report it.
const EXIT_INTERRUPTED: i32 = 130;

/// Runs one call of the program: 0, 1 could not be done, 2 wrong use. An error is one line on
/// stderr.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A defect of this program, should there be one, is one line too.
    std::panic::set_hook(Box::new(|panic| {
        say!("kl: internal error, please report: {panic}")
    }));
    let args = match Args::try_parse_from(short_flags::expand(args)) {
        Ok(args) => args,
        Err(error) => return show_usage(&error),
    };
    let command = match Command::try_from(args).and_then(|command| {
        paths::check(&command)?;
        Ok(command)
    }) {
        Ok(command) => command,
        Err(error) => {
            say!("kl: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    follow_log(command.run().verbose);
    stop_on_signals();
    let done = match command {
        Command::Write(settings) => write::run(&settings),
        Command::Read(settings) => read::run(&settings),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say!("kl: {}", one_line(&error));
            if stop_asked() {
                die_interrupted();
            }
            ExitCode::FAILURE
        }
    }
}

/// clap's own words: help and version as they are, an error in one line.
fn show_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A pipe that closes is no error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    // What is wrong, and what is listed below it, up to the advice.
    let advice = ["Usage:", "For more information"];
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !advice.iter().any(|advice| line.starts_with(advice)))
        .collect();
    let said = said.join(" ");
    say!(
        "kl: {} (kl --help shows the flags)",
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

/// Whether the user has asked to stop: looked at after each decode call.
static STOP: AtomicBool = AtomicBool::new(false);

/// The first Ctrl-C, SIGTERM or SIGHUP ends the run after the current decode call, the second at
/// once; neither leaves a part of a file behind.
fn stop_on_signals() {
    // Without a handler a signal ends the program as it always does.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            output::remove_partial_files();
            std::process::exit(EXIT_INTERRUPTED);
        }
        say!("kl: stopping; once more to stop at once");
    });
}

/// Ends as a process that SIGINT has ended, so that a shell's loop ends with it.
fn die_interrupted() -> ! {
    #[cfg(unix)]
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGINT);
    std::process::exit(EXIT_INTERRUPTED)
}

fn stop_asked() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// An error and its causes, in one line.
fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Whoever read our output has stopped reading, which is theirs to decide.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_error = error.downcast_ref::<io::Error>();
    io_error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
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
