//! Flags and commands: the only place that prints or reads the environment.
//!
//! No input may make it panic: clippy denies what could, and each exception states why it cannot.
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

/// Prints one line to stderr, whatever the names of files in it hold. If stderr is closed, the work
/// continues.
macro_rules! say {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let line = $crate::report::number::printable(&format!($($message)*));
        let _ = writeln!(std::io::stderr(), "{line}");
    }};
}

mod args;
mod generate;
mod limits;
mod names;
mod progress;
mod request;
mod results;
mod rules;
mod short_flags;
mod stop;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use kl_system::threads;

use crate::commands::settings::default_threads;
use crate::commands::{self, NewFile, Shelf, one_line};
use crate::engine::{LlamaCpp, follow_log, on_abort};
use crate::input::chat_template;
use crate::report::layout::laid_out;
use crate::report::number::{bytes, count_of, duration, printable};
use args::Command;
use names::Chosen;
use request::{Request, Session};
use results::Results;

/// The exit code for wrong usage.
const EXIT_USAGE: u8 = 2;

/// The exit code if a condition of `--fail-if` holds.
const EXIT_CONDITION: u8 = 3;

/// Runs one call of the program: 0 success, 1 failure, 2 wrong usage, 3 a condition holds. An error
/// is one line on stderr.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A bug in this program is reported in one line too.
    std::panic::set_hook(Box::new(|panic| {
        let panic = panic.to_string().replace('\n', " ");
        say!("kl: internal error, please report: {panic}");
    }));
    let args: Vec<OsString> = args.into_iter().collect();
    if let [_, word] = &*args
        && word == chat_template::COMMAND
    {
        return chat_template::serve();
    }
    chat_template::contain_templates(stop::asked);
    limits::raise_open_files();
    let mut args = match short_flags::expand(args) {
        Ok(args) => args,
        Err(error) => return wrong_usage(&error),
    };
    match generate::asked(&args) {
        Some(Ok(text)) => return exit_code(print(&text)),
        Some(Err(error)) => return wrong_usage(&error),
        None => {}
    }
    let ran = Invocation::read(&args).and_then(|mut call| {
        threads::start_pool(default_threads() as usize);
        // A call that is refused asks no hub.
        let (quants, discard) = (&call.quants, call.discard);
        names::check(&args, quants, discard, call.picks).map_err(wrong_usage)?;
        let chosen = Chosen::new(quants, call.picks);
        let resolved = names::resolve(&mut args, chosen, discard);
        let shelf = resolved.map_err(|error| exit_code(Err(error)))?;
        if shelf.is_some() {
            call = Invocation::read(&args)?;
        }
        Ok(exit_code(run(call, shelf.unwrap_or_default())))
    });
    ran.unwrap_or_else(|code| code)
}

/// A call whose flags go together.
struct Invocation {
    request: Box<dyn Request>,
    quiet: bool,
    verbose: bool,
    quants: Vec<String>,
    discard: bool,
    /// True for `kl pick`, where a repository's name means all of its quants.
    picks: bool,
}

impl Invocation {
    /// Reads the flags; else says what is wrong with them, and returns the exit code.
    fn read(args: &[OsString]) -> Result<Self, ExitCode> {
        let cli = args::parse(args).map_err(|error| usage::show(&error, args))?;
        let classic = &cli.classic;
        let (quiet, verbose) = (classic.quiet, classic.verbose);
        let pick = match &cli.command {
            Some(Command::Pick(pick)) => Some(pick),
            _ => None,
        };
        let picks = pick.is_some();
        let (quants, discard) = match pick {
            Some(pick) => (pick.quants.clone(), pick.discard),
            None => (classic.evaluate.quants.clone(), classic.evaluate.discard),
        };
        let request = rules::check(cli).map_err(|error| wrong_usage(&error))?;
        Ok(Self {
            request,
            quiet,
            verbose,
            quants,
            discard,
            picks,
        })
    }
}

fn wrong_usage(error: &str) -> ExitCode {
    say!("kl: {error}");
    ExitCode::from(EXIT_USAGE)
}

fn exit_code(done: Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        say!("kl: {}", one_line(&error));
        if stop::asked() {
            stop::die();
        }
        ExitCode::FAILURE
    })
}

/// Prints a text that is all of the result.
fn print(text: &str) -> Result<ExitCode> {
    let mut results = Results::default();
    results.print_text(text);
    results.close(true)?;
    Ok(ExitCode::SUCCESS)
}

fn run(call: Invocation, shelf: Shelf) -> Result<ExitCode> {
    let (mut request, quiet) = (call.request, call.quiet);
    follow_log(call.verbose);
    on_abort(stop::abort);
    stop::listen();
    let engine = LlamaCpp::default();
    if call.verbose {
        say_lines(&commands::doctor(&[], default_threads(), &engine).text);
    }
    let session = Session { engine, quiet };
    // Loading can take hours, so what a model is to run over is looked for before that.
    shelf.look_for(&request.inputs())?;
    request.load(shelf, &session.terminal())?;
    request.run(&session)
}

/// Prints a text that `kl` has laid out in lines, whose own parts are printable.
fn say_lines(text: &str) {
    text.lines().for_each(|line| say!("{line}"));
}

/// Prints that a file was written.
fn say_wrote(path: &str, quiet: bool) {
    if !quiet {
        say!("wrote {path}");
    }
}

/// Prints that a reference, a sidecar or a map was written; `of`: what its rows are of; `speed`: where its
/// seconds went.
fn say_new(file: &NewFile, of: &str, speed: &str, quiet: bool) {
    if file.was_whole {
        say!("kl: {}: is already complete", file.path);
    } else if !quiet {
        let text = format!(
            "wrote {}: {}, {}{of} in {}{speed}",
            file.path,
            bytes(file.file_bytes),
            count_of(file.n_rows, if file.is_map { "cell" } else { "row" }),
            duration(file.wall_s)
        );
        say_lines(&laid_out("", 2, " ", printable(&text).split(' ')));
    }
}
