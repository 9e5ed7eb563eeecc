//! Flags and commands: the only place that prints or reads the environment.

mod args;
mod output;
mod progress;
mod read;
mod reference;
mod results;
mod settings;
mod setup;
mod short_flags;
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

/// Runs one call of the program: 0, 1 could not be done, 2 wrong use. An error is one line on
/// stderr.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A defect of this program, should there be one, is one line too.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("kl: internal error, please report: {panic}")
    }));
    let args = match Args::try_parse_from(short_flags::expand(args)) {
        Ok(args) => args,
        Err(error) => {
            // Prints --help and --version too, which are no errors.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let command = match Command::try_from(args) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("kl: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    follow_log(command.run().verbose);
    stop_on_ctrl_c();
    let done = match command {
        Command::Write(settings) => write::run(&settings),
        Command::Read(settings) => read::run(&settings),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kl: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(&self) -> &RunSettings {
        match self {
            Self::Write(settings) => &settings.run,
            Self::Read(settings) => &settings.run,
        }
    }
}

/// Whether the user has asked to stop: looked at after each window.
static STOP: AtomicBool = AtomicBool::new(false);

/// The first Ctrl-C or SIGTERM ends the run after the current window; the second at once.
fn stop_on_ctrl_c() {
    // Without a handler a signal ends the program as it always does.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("kl: stopping after this window; once more to stop at once");
    });
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
    eprintln!("kl: warning: {warning}");
}
