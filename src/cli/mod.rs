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
mod remade;
mod request;
mod results;
mod rules;
mod short_flags;
mod stop;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use kl_system::threads;

use crate::commands::settings::{ResultSettings, default_threads};
use crate::commands::{self, Event, NewFile, Observer, Shelf, Written, one_line};
use crate::engine::{Engine, LlamaCpp, follow_log, on_abort};
use crate::input::chat_template;
use crate::report::layout::laid_out;
use crate::report::number::{bytes, count_of, duration, per_second, percent, printable, short_kld};
use crate::report::{ModelReport, Report, json_text, notable_core_wait};
use args::InfoArgs;
use request::Request;
use results::{Form, Results};
use terminal::{Detail, Terminal};

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
        names::check(&args, quants, discard).map_err(wrong_usage)?;
        let resolved = names::resolve(&mut args, quants, discard);
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
    request: Request,
    quiet: bool,
    verbose: bool,
    quants: Vec<String>,
    discard: bool,
}

impl Invocation {
    /// Reads the flags; else says what is wrong with them, and returns the exit code.
    fn read(args: &[OsString]) -> Result<Self, ExitCode> {
        let cli = args::parse(args).map_err(|error| usage::show(&error, args))?;
        let classic = &cli.classic;
        let (quiet, verbose) = (classic.quiet, classic.verbose);
        let (quants, discard) = (classic.evaluate.quants.clone(), classic.evaluate.discard);
        let request = rules::check(cli).map_err(|error| wrong_usage(&error))?;
        Ok(Self {
            request,
            quiet,
            verbose,
            quants,
            discard,
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
    let (mut request, quiet, verbose) = (call.request, call.quiet, call.verbose);
    follow_log(verbose);
    on_abort(stop::abort);
    stop::listen();
    let engine = LlamaCpp::default();
    if verbose {
        say_lines(&commands::doctor(&[], default_threads(), &engine).text);
    }
    let terminal = Terminal::new(quiet, false, Detail::default().view(), Results::default());
    load_names(&mut request, shelf, &terminal)?;
    match &request {
        Request::Write(settings) => {
            show_written(&commands::write(settings, &engine, &terminal)?, quiet);
        }
        Request::Evaluate {
            settings,
            json,
            detail,
        } => {
            let (results, n) = (&settings.results, settings.subjects().len());
            let evaluate =
                |observer: &dyn Observer| commands::evaluate(settings, &engine, observer);
            return show_evaluation(results, json, *detail, n, quiet, evaluate);
        }
        Request::Compare {
            settings,
            json,
            detail,
        } => {
            let (results, n) = (&settings.results, settings.others.len());
            let compare = |observer: &dyn Observer| commands::compare(settings, &engine, observer);
            return show_evaluation(results, json, *detail, n, quiet, compare);
        }
        Request::Report {
            settings,
            outputs,
            form,
            detail,
        } => return remade::show_report(settings, outputs, *form, *detail, &terminal, quiet),
        Request::Sensitivity(settings, outputs) => {
            remade::show_sensitivity(settings, outputs, &engine, &terminal, quiet)?;
        }
        Request::Recipe {
            settings,
            outputs,
            report,
        } => {
            let report = report.as_deref();
            remade::show_recipe(settings, outputs, report, &engine, &terminal, quiet)?;
        }
        Request::Info(args) => show_info(args, &engine, quiet)?,
        Request::Convert(settings) => {
            let new = commands::convert(settings, &engine, &terminal)?;
            say_new(&new, "", "", quiet);
        }
        Request::Merge(settings) => {
            let parts = count_of(settings.parts.len() as u64, "part");
            let merged = commands::merge(settings, &terminal)?;
            say_new(&merged, &format!(" of {parts}"), "", quiet);
        }
        Request::Check(settings, outputs) => {
            return remade::show_check(settings, outputs, &engine, &terminal, quiet);
        }
        Request::Doctor(args) => {
            let doctor = commands::doctor(&args.rpc, default_threads(), &engine);
            print(&doctor.text)?;
            if doctor.n_problems > 0 {
                let n = count_of(doctor.n_problems as u64, "problem");
                bail!("{n} found: see each line that starts with PROBLEM");
            }
        }
        Request::ListDevices(servers) => return print(&commands::list_devices(servers, &engine)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads what a call names on a hub, but for models that are evaluated: each is loaded before its turn. What
/// a model is to run over is looked for before that, since loading can take hours.
fn load_names(request: &mut Request, shelf: Shelf, observer: &dyn Observer) -> Result<()> {
    shelf.look_for(&request.inputs())?;
    let Request::Evaluate { settings, .. } = request else {
        return shelf.load_all_but(&[], observer);
    };
    shelf.load_all_but(&settings.models, observer)?;
    settings.shelf = shelf;
    Ok(())
}

/// Runs an evaluation of `n` models or files, and shows its results.
fn show_evaluation(
    settings: &ResultSettings,
    json: &Option<PathBuf>,
    detail: Detail,
    n: usize,
    quiet: bool,
    evaluate: impl FnOnce(&dyn Observer) -> Result<Report>,
) -> Result<ExitCode> {
    let brief = detail.is_brief(n, settings);
    let results = Results::new([(json, Form::Json(""))], settings.existing)?;
    let terminal = Terminal::new(quiet, brief, detail.view(), results);
    let report = evaluate(&terminal)?;
    terminal.into_results().finish(|| report.json(), quiet)?;
    if !report.unwritten.is_empty() {
        bail!("some results could not be written");
    }
    if brief && !quiet {
        show_outcome(&report);
    }
    if stop::asked() {
        bail!("interrupted");
    }
    match report.failed.as_slice() {
        [] if report.models.iter().any(fails) => Ok(ExitCode::from(EXIT_CONDITION)),
        [] => Ok(ExitCode::SUCCESS),
        [only] if n == 1 => bail!("{}", only.error),
        failed => bail!("{} of {n} could not be evaluated", failed.len()),
    }
}

/// True if a condition of `--fail-if` holds for a model.
fn fails(model: &ModelReport) -> bool {
    model.conditions.iter().any(|one| one.failed)
}

/// Prints how many of several models fail a condition; each that fails has its own line.
fn show_outcome(report: &Report) {
    let models = report.models.iter();
    let judged = models.filter(|model| !model.conditions.is_empty());
    let n_failed = judged.clone().filter(|model| fails(model)).count();
    let n = judged.count() as u64;
    if n_failed > 0 {
        say!("kl: --fail-if: {n_failed} of {} fail", count_of(n, "model"));
    } else if n > 0 {
        say!("kl: --fail-if: none of {} fails", count_of(n, "model"));
    }
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

fn show_written(written: &Written, quiet: bool) {
    let (timing, wall_s) = (&written.timing, written.file.wall_s);
    let took = |what: &str, time: Duration| format!("{what} {}", duration(time.as_secs_f64()));
    let mut parts = Vec::new();
    let input = timing.input.unwrap_or_default();
    parts.push(took("tokenize", input.tokenize));
    if let Some(time) = input.generate.filter(|_| written.n_generated > 0) {
        let rate = written.n_generated as f64 / time.as_secs_f64();
        let pace = format!("{} tokens/s", per_second(rate));
        parts.push(format!("{} at {pace}", took("generate", time)));
    }
    parts.extend([
        took("decode", timing.decode),
        took("encode", timing.score),
        took("write", timing.write),
    ]);
    parts.extend(written.checked.map(|_| took("check", written.check_time)));
    let busy = timing.device.as_ref().map(|device| device.busy_share);
    parts.extend(busy.map(|share| format!("device busy {}", percent(share))));
    let in_windows_s = wall_s - input.generate.unwrap_or_default().as_secs_f64();
    let tokens_per_s = per_second(written.n_tokens as f64 / in_windows_s);
    let speed = format!(" ({}), {tokens_per_s} tokens/s", parts.join(", "));
    say_new(&written.file, "", &speed, quiet);
    if quiet || written.file.was_whole {
        return;
    }
    let core_wait_s = timing.core_wait.map(|waited| waited.as_secs_f64());
    if let Some(waited_s) = notable_core_wait(core_wait_s, wall_s) {
        let waited = duration(waited_s);
        say!("the cores were busy with other work: this run waited {waited} for one");
    }
    // There are none where only the end of the file was missing.
    if let Some(checked) = written.checked.filter(|checked| checked.n_rows > 0) {
        let rows = count_of(checked.n_rows, "row");
        let mut found = "all to the bit".to_owned();
        if !checked.is_exact() {
            found = format!("at most {} nats off", short_kld(checked.max_kld));
        }
        say!("checked {rows}, computed from the hidden states: {found}");
    }
}

/// Describes files. One that cannot be described does not stop the others.
fn show_info(args: &InfoArgs, engine: &dyn Engine, quiet: bool) -> Result<()> {
    let mut results = Results::default();
    results.printed = args.json.then_some(Form::Json(""));
    let terminal = Terminal::new(quiet, false, Detail::default().view(), results);
    let mut infos = Vec::new();
    let describe = |file: &PathBuf| {
        let original = args.original.as_deref();
        let mut info = commands::info(file, args.verify, original, engine, &terminal)?;
        if args.prompts {
            let model = args.model.as_deref();
            let texts = commands::prompt_texts(file, model, engine, &terminal)?;
            terminal.on_event(&Event::Prompted(&texts));
            info.prompt_texts = Some(texts);
        }
        Ok(info)
    };
    for file in &args.files {
        match describe(file) {
            Ok(info) => infos.push(info),
            Err(error) if args.files.len() == 1 => return Err(error),
            Err(error) => say!("kl: {}", one_line(&error)),
        }
    }
    let n_failed = args.files.len() - infos.len();
    let json = || match &infos[..] {
        [only] if args.files.len() == 1 => json_text(only),
        all => json_text(&all),
    };
    terminal.into_results().finish(json, true)?;
    if n_failed > 0 {
        bail!("{n_failed} of {} files could not be read", args.files.len());
    }
    let found = infos.iter().filter_map(|info| info.verification.as_ref());
    let n_findings: usize = found.map(|found| found.findings.len()).sum();
    if n_findings > 0 {
        bail!("{}: see above", count_of(n_findings as u64, "finding"));
    }
    Ok(())
}
