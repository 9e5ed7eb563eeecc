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

/// Prints a line to stderr. If stderr is closed, the work continues.
macro_rules! say {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let line = $crate::cli::printable(&format!($($message)*));
        let _ = writeln!(std::io::stderr(), "{line}");
    }};
}

mod abort;
mod args;
mod devices;
mod doctor;
mod generate;
mod hints;
mod progress;
mod report;
mod results;
mod settings;
mod short_flags;
mod stop;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::commands::settings::{EvaluateSettings, InfoSettings, ResultSettings, WriteSettings};
use crate::commands::{self, Observer, Written, one_line};
use crate::engine::{LlamaCpp, follow_log, on_abort, on_wait};
use crate::report::layout::laid_out;
use crate::report::number::{bytes, count, count_of, duration, percent, significant};
use crate::report::{ModelReport, Report, notable_core_wait, verified_text};
use results::Results;
use settings::Command;
use terminal::Terminal;

/// A text without control characters, which a file's name may hold and a terminal would obey.
fn printable(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() || c == '\n';
    let kept = text.chars().map(|c| if is_harmless(c) { c } else { '?' });
    kept.collect()
}

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
    let args = short_flags::expand(args);
    if let Some(kind) = generate::asked(&args) {
        return show_generated(kind);
    }
    let cli = match args::parse(&args) {
        Ok(cli) => cli,
        Err(error) => return usage::show(&error, &args),
    };
    match Command::try_from(cli) {
        Ok(command) => exit_code(run(&command)),
        Err(error) => {
            say!("kl: {error}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn show_generated(kind: Result<generate::Kind, String>) -> ExitCode {
    match kind {
        Ok(kind) => {
            let mut results = Results::as_text();
            results.print_text(&generate::text(kind));
            exit_code(results.close().map(|()| Outcome::Done))
        }
        Err(error) => {
            say!("kl: {error}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn run(command: &Command) -> Result<Outcome> {
    let is_verbose = match command {
        Command::Write(WriteSettings { run, .. })
        | Command::Evaluate(EvaluateSettings { run, .. })
        | Command::ListDevices(run) => run.verbose,
        _ => false,
    };
    follow_log(is_verbose);
    on_abort(abort::die);
    on_wait(stop::say_server);
    stop::listen(matches!(command, Command::Write(_) | Command::Evaluate(_)));
    let engine = LlamaCpp::of_one_command();
    if is_verbose {
        say!("{}", doctor::doctor_text(&commands::doctor(&[], &engine)));
    }
    match command {
        Command::Write(settings) => {
            let terminal = Terminal::new(settings.run.quiet, Results::as_text());
            let written = commands::write(settings, &engine, &terminal)?;
            show_written(&written, settings.run.quiet);
        }
        Command::Evaluate(settings) => {
            return show_evaluation(&settings.results, settings.models.len(), |observer| {
                commands::evaluate(settings, &engine, observer)
            });
        }
        Command::Compare(settings) => {
            return show_evaluation(&settings.results, settings.others.len(), |observer| {
                commands::compare(settings, &engine, observer)
            });
        }
        Command::Convert(settings) => {
            let terminal = Terminal::new(settings.quiet, Results::as_text());
            let converted = commands::convert(settings, &engine, &terminal)?;
            if !settings.quiet {
                say_wrapped(&format!(
                    "wrote {}: {}, {} rows in {}",
                    converted.path,
                    bytes(converted.file_bytes),
                    count(converted.n_rows),
                    duration(converted.wall_s)
                ));
            }
        }
        Command::Merge(settings) => {
            let terminal = Terminal::new(settings.quiet, Results::as_text());
            let merged = commands::merge(settings, &terminal)?;
            if merged.was_whole {
                say!("kl: {}: is already complete", merged.path);
            } else if !settings.quiet {
                say_wrapped(&format!(
                    "wrote {}: {}, {} rows of {} in {}",
                    merged.path,
                    bytes(merged.file_bytes),
                    count(merged.n_rows),
                    count_of(merged.n_parts as u64, "part"),
                    duration(merged.wall_s)
                ));
            }
        }
        Command::Info(settings) => show_info(settings)?,
        Command::Report(settings, outputs) => report::show_report(settings, outputs)?,
        Command::ListDevices(settings) => {
            let devices = commands::list_devices(settings, &engine)?;
            let mut results = Results::as_text();
            results.print_text(&devices::devices_text(&devices));
            results.close()?;
        }
        Command::Doctor(servers) => {
            let mut results = Results::as_text();
            let doctor = commands::doctor(servers, &engine);
            results.print_text(&doctor::doctor_text(&doctor));
            results.close()?;
            if !doctor.problems.is_empty() {
                let n = count_of(doctor.problems.len() as u64, "problem");
                bail!("{n} found: see each line that starts with PROBLEM");
            }
        }
    }
    Ok(Outcome::Done)
}

/// Runs an evaluation of `n` models or files, and shows its results.
fn show_evaluation(
    settings: &ResultSettings,
    n: usize,
    evaluate: impl FnOnce(&dyn Observer) -> Result<Report>,
) -> Result<Outcome> {
    let brief = settings.is_brief(n);
    let terminal = Terminal::new(settings.quiet, Results::new(settings)?).brief(brief);
    let report = evaluate(&terminal)?;
    let results = terminal.into_results();
    if let Some(json) = results.json_path() {
        say_wrote(&json.display().to_string(), settings.quiet);
    }
    results.finish(&report)?;
    if brief && !settings.quiet {
        show_outcome(&report);
    }
    if stop::asked() {
        bail!("interrupted");
    }
    let holds = |conditions: &[crate::report::Verdict]| conditions.iter().any(|one| one.failed);
    match report.failed.as_slice() {
        [] if report.models.iter().any(|model| holds(&model.conditions)) => {
            Ok(Outcome::ConditionFailed)
        }
        [] => Ok(Outcome::Done),
        [only] if n == 1 => bail!("{}", only.error),
        failed => bail!("{} of {n} could not be evaluated", failed.len()),
    }
}

/// Prints how many of several models fail a condition; each that fails has its own line.
fn show_outcome(report: &Report) {
    let judged = report
        .models
        .iter()
        .filter(|model| !model.conditions.is_empty());
    let n = judged.clone().count();
    let is_failed = |model: &&ModelReport| model.conditions.iter().any(|one| one.failed);
    match judged.filter(is_failed).count() {
        _ if n == 0 => {}
        0 => say!(
            "kl: --fail-if: none of {} fails",
            count_of(n as u64, "model")
        ),
        failed => say!(
            "kl: --fail-if: {failed} of {} fail",
            count_of(n as u64, "model")
        ),
    }
}

/// Prints that a file was written.
fn say_wrote(path: &str, quiet: bool) {
    if !quiet {
        say!("wrote {path}");
    }
}

fn show_written(written: &Written, quiet: bool) {
    if written.was_whole {
        say!("kl: {}: is already complete", written.path);
    } else if !quiet {
        let check = match &written.checked {
            Some(_) => format!(", check {}", duration(written.check_s)),
            None => String::new(),
        };
        let device = match &written.device {
            Some(device) => format!(", device busy {}", percent(device.busy_share)),
            None => String::new(),
        };
        say_wrapped(&format!(
            "wrote {}: {}, {} rows in {} (decode {}, encode {}, write {}{check}{device}), {:.0} tokens/s",
            written.path,
            bytes(written.file_bytes),
            count(written.n_rows),
            duration(written.wall_s),
            duration(written.decode_s),
            duration(written.encode_s),
            duration(written.write_s),
            written.n_tokens as f64 / written.wall_s,
        ));
        if let Some(waited_s) = notable_core_wait(written.core_wait_s, written.wall_s) {
            let waited = duration(waited_s);
            say!("the cores were busy with other work: this run waited {waited} for one");
        }
        // There are none where only the end of the file was missing.
        if let Some(checked) = written.checked.filter(|checked| checked.n_rows > 0) {
            let rows = count_of(checked.n_rows, "row");
            match checked.is_exact {
                true => say!("checked {rows}, computed from the hidden states: all to the bit"),
                false => say!(
                    "checked {rows}, computed from the hidden states: at most {} nats off",
                    significant(checked.max_kld, 3)
                ),
            }
        }
    }
}

/// Prints a sentence to stderr, in lines that fit a terminal.
fn say_wrapped(text: &str) {
    say!("{}", laid_out("", 2, " ", text.split(' ')).trim_end());
}

fn show_info(settings: &InfoSettings) -> Result<()> {
    let results = match settings.json {
        true => Results::as_json(),
        false => Results::as_text(),
    };
    let terminal = Terminal::new(settings.quiet, results);
    let info = commands::info(settings, &terminal)?;
    let mut results = terminal.into_results();
    if let Some(verified) = &info.verified {
        results.print_text(&verified_text(verified));
    }
    results.finish_json(&info)
}

fn exit_code(done: Result<Outcome>) -> ExitCode {
    match done {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::ConditionFailed) => ExitCode::from(EXIT_CONDITION),
        Err(error) => {
            say!("kl: {}", one_line(&error));
            if stop::asked() {
                stop::die();
            }
            ExitCode::FAILURE
        }
    }
}

/// How a run ended, if it was not an error.
enum Outcome {
    Done,
    /// A condition of `--fail-if` holds, so that the run does not count as a success.
    ConditionFailed,
}

/// Prints a result to stdout, where nothing else goes.
fn print_result(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
