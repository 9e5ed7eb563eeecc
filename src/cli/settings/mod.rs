//! Turns flags into checked settings. clap checks each value by its type, and which flags exclude or
//! need each other; one function per command here checks how the values go together; the command
//! checks what needs the contents of files.

mod evaluate;
mod input;
mod paths;
#[cfg(test)]
mod tests;
mod write;

use std::path::{Path, PathBuf};
use std::slice::from_ref;

use kl_formats::Kind;

use super::args::{Args, Cli, InfoArgs, ReportArgs, Subcommand};
use crate::commands::is_listed;
use crate::commands::settings::{
    CompareSettings, ConvertSettings, EvaluateSettings, MergeSettings, RecipeSettings,
    ReferenceSource, RunSettings, SensitivitySettings, WriteSettings,
};

/// A checked call of the program.
#[derive(Debug)]
pub struct Call {
    pub command: Command,
    /// Set if only results, warnings and errors are printed.
    pub quiet: bool,
    /// Set if the machine and llama.cpp's log are shown.
    pub verbose: bool,
}

/// A command, with all that it needs to run.
#[derive(Debug)]
pub enum Command {
    Write(WriteSettings),
    Evaluate(EvaluateSettings),
    Info(InfoArgs),
    Convert(ConvertSettings),
    Merge(MergeSettings),
    Compare(Box<CompareSettings>),
    Report(ReportArgs),
    Sensitivity(Box<SensitivitySettings>),
    Recipe(Box<RecipeSettings>),
    /// The servers whose devices are listed too.
    ListDevices(Vec<String>),
    /// The servers to try.
    Doctor(Vec<String>),
}

impl Call {
    /// Checks how the flags of a call go together.
    ///
    /// # Errors
    /// What is wrong and what to do, in one line.
    pub fn new(cli: Cli) -> Result<Self, String> {
        let mut verbose = cli.classic.verbose;
        let (quiet, command) = match cli.subcommand {
            None => (cli.classic.quiet, classic(cli.classic)?),
            Some(Subcommand::Info(args)) => (args.quiet, Command::Info(args)),
            Some(Subcommand::Convert(args)) => (args.quiet, convert(args)?),
            Some(Subcommand::Merge(args)) => (args.quiet, merge(args)?),
            Some(Subcommand::Compare(args)) => (args.quiet, evaluate::compare(args)?),
            Some(Subcommand::Report(args)) => (args.quiet, report(args)?),
            Some(Subcommand::Sensitivity(args)) => {
                verbose = args.verbose;
                (args.quiet, sensitivity(args)?)
            }
            Some(Subcommand::Recipe(args)) => {
                verbose = args.verbose;
                (args.quiet, recipe(args)?)
            }
            Some(Subcommand::Doctor(args)) => (false, Command::Doctor(args.rpc)),
        };
        Ok(Self {
            command,
            quiet,
            verbose,
        })
    }
}

/// Refuses a call.
fn wrong<T>(message: impl Into<String>) -> Result<T, String> {
    Err(message.into())
}

/// The command of a classic call. clap has already refused flags for writing beside flags for
/// evaluating, and an input beside a reference that is read.
fn classic(mut args: Args) -> Result<Command, String> {
    check_devices("--device", &args.run.model.devices)?;
    check_devices("--ref-device", &args.evaluate.ref_device)?;
    if args.list_devices {
        return Ok(Command::ListDevices(args.run.model.rpc));
    }
    if let Some(path) = args.evaluate.read_path.take() {
        let (n_ctx, inputs) = (args.n_ctx, vec![path.clone()]);
        return evaluate::evaluate(args, ReferenceSource::File { path, n_ctx }, inputs);
    }
    let sampling = input::sampling(&args.input, &mut args.results.top_k)?;
    if let (Some(_), Some(_)) = (&args.write.write_path, args.results.top_k) {
        return wrong(
            "--top-k with -w needs --temp, for which it chooses among tokens: leave it out, or give \
             it when you evaluate, to list the most divergent tokens",
        );
    }
    let input = input::input(&mut args.input, args.write.format, args.n_ctx, sampling)?;
    let (output, ref_model) = (args.write.write_path.take(), args.evaluate.ref_model.take());
    match (input, output, ref_model) {
        (Some(input), None, Some(model)) => evaluate::against_model(args, input, model),
        (Some(input), Some(output), _) => write::write(args, input, output),
        (Some(_), None, None) => wrong(
            "nothing to do: -t and --prompts need -w REF to write a reference, or --ref-model \
             MODEL to evaluate against it",
        ),
        (None, Some(_), _) => wrong("no text: -w needs -t TEXT or --prompts PROMPTS"),
        (None, None, Some(_)) => wrong("no text: --ref-model needs -t TEXT or --prompts PROMPTS"),
        (None, None, None) => wrong(
            "nothing to do: give -t TEXT -w REF to write a reference, or -r REF or -t TEXT \
             --ref-model MODEL to evaluate against one",
        ),
    }
}

/// Checks a list of devices: each is named once, and `none` stands alone.
fn check_devices(flag: &str, names: &[String]) -> Result<(), String> {
    for (i, name) in names.iter().enumerate() {
        if names.iter().take(i).any(|earlier| earlier == name) {
            return wrong(format!("{flag}: names {name} twice: name each device once"));
        }
        if name == "none" && names.len() > 1 {
            return wrong(format!(
                "{flag}: 'none' means the CPU alone: leave it out, or leave out the others"
            ));
        }
    }
    Ok(())
}

fn convert(args: ConvertSettings) -> Result<Command, String> {
    if args.encoding.is_some() && args.format != Kind::Kl {
        return wrong("--encoding needs --format kl: every other format has its own");
    }
    paths::check(from_ref(&args.input), |_| false, from_ref(&args.output))?;
    args.target()?;
    Ok(Command::Convert(args))
}

fn merge(args: MergeSettings) -> Result<Command, String> {
    if paths::is_among(&args.output, &args.parts) {
        return wrong(format!(
            "{}: is the output, and among the parts: name the parts so that a pattern for them does not match it, as in ref.*.gz",
            args.output.display()
        ));
    }
    paths::check(&args.parts, |_| false, from_ref(&args.output))?;
    Ok(Command::Merge(args))
}

fn report(args: ReportArgs) -> Result<Command, String> {
    let (json, csv) = (is_stdout(&args.json), is_stdout(&args.csv));
    let printed = [args.markdown, args.model_card, json, csv];
    if printed.into_iter().filter(|is_asked| *is_asked).count() > 1 {
        return wrong(
            "only one of --markdown, --model-card, --json - and --csv - can go to stdout: \
             name a file for the other",
        );
    }
    for condition in &args.fail_if {
        let expression = condition.expression();
        if args.pair && !condition.is_of_pair() {
            return wrong(format!(
                "--fail-if '{expression}': names a number of one model: leave --pair out, or name one of two, as in 'ratio.upper > 1.05'"
            ));
        } else if !args.pair && !condition.is_of_model() {
            return wrong(format!(
                "--fail-if '{expression}': names a number of two models: add --pair"
            ));
        }
    }
    let outputs = [
        ("--json", &args.json),
        ("--csv", &args.csv),
        ("--html", &args.html),
    ];
    paths::check(&args.paths, is_listed, &written(outputs)?)?;
    Ok(Command::Report(args))
}

fn sensitivity(mut args: Box<SensitivitySettings>) -> Result<Command, String> {
    check_devices("--device", &args.run.model.devices)?;
    if is_stdout(&args.json) && is_stdout(&args.csv) {
        return wrong(
            "only one of --json - and --csv - can go to stdout: name a file for the other",
        );
    }
    let map = Some(args.output.clone());
    let written = written([
        ("--write-path", &map),
        ("--json", &args.json),
        ("--csv", &args.csv),
        ("--html", &args.html),
    ])?;
    let inputs = [&args.imatrix, &args.read_path, &args.text_path];
    let inputs = [&args.model]
        .into_iter()
        .chain(inputs.into_iter().flatten());
    let inputs: Vec<PathBuf> = inputs.cloned().collect();
    paths::check(&inputs, |_| false, &written)?;
    args.run.model.is_exchangeable = true;
    Ok(Command::Sensitivity(args))
}

fn recipe(mut args: Box<RecipeSettings>) -> Result<Command, String> {
    check_devices("--device", &args.run.model.devices)?;
    let written = written([
        ("--write-path", &args.output),
        ("--json", &args.json),
        ("--html", &args.html),
        ("--quantize", &args.quantize),
    ])?;
    if args.model.is_some() && args.text_path.is_none() && args.quantize.is_none() {
        return wrong(
            "nothing to do with -m: give -t TEXT to measure the recipe, or --quantize OUT to write its file",
        );
    }
    args.text().iter().try_for_each(input::check_score)?;
    let inputs = [
        &args.like,
        &args.model,
        &args.text_path,
        &args.imatrix,
        &args.report,
    ];
    let inputs = [&args.map].into_iter().chain(inputs.into_iter().flatten());
    let inputs: Vec<PathBuf> = inputs.cloned().collect();
    paths::check(&inputs, |_| false, &written)?;
    args.run.model.is_exchangeable = true;
    Ok(Command::Recipe(args))
}

/// Returns true if an output is `-`.
fn is_stdout(path: &Option<PathBuf>) -> bool {
    path.as_deref().is_some_and(|path| path == Path::new("-"))
}

/// The files that these flags name, each once; `-` is none.
fn written<const N: usize>(flags: [(&str, &Option<PathBuf>); N]) -> Result<Vec<PathBuf>, String> {
    let files = flags.map(|(flag, path)| (flag, path.as_ref().filter(|_| !is_stdout(path))));
    paths::check_distinct(&files)?;
    Ok(files.iter().filter_map(|(_, path)| path.cloned()).collect())
}

/// The way to run the evaluated models of a classic call, or the one that writes a reference.
fn classic_run(args: &Args) -> RunSettings {
    let mut run = args.run.clone();
    run.model.use_mmap = (args.mmap || args.no_mmap).then_some(args.mmap);
    run.max_rows = args.max_rows;
    run
}
