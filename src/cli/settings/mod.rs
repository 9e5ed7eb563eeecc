//! Turns flags into checked settings: what clap cannot check is checked here.

mod convert;
mod evaluate;
mod input;
mod merge;
mod paths;
mod report;
mod run;
#[cfg(test)]
mod tests;
mod usage_error;
mod write;

pub use report::{ReportOutputs, Shown};
pub use usage_error::UsageError;

use super::args::{Args, Cli, InfoArgs, Subcommand};
use crate::commands::settings::{
    CompareSettings, ConvertSettings, EvaluateSettings, InfoSettings, MergeSettings,
    ReportSettings, RunSettings, WriteSettings,
};
use evaluate::{against_file, against_model};
use input::input;
use report::report_settings;
pub use run::default_threads;
use run::{check_devices, run_settings};
use usage_error::wrong;
use write::write_settings;

/// A command, with all that it needs to run.
#[derive(Debug)]
pub enum Command {
    Write(WriteSettings),
    Evaluate(EvaluateSettings),
    Info(InfoSettings),
    Convert(ConvertSettings),
    Merge(MergeSettings),
    Compare(CompareSettings),
    Report(ReportSettings, ReportOutputs),
    ListDevices(RunSettings),
    /// The servers to try.
    Doctor(Vec<String>),
}

impl TryFrom<Cli> for Command {
    type Error = UsageError;

    fn try_from(cli: Cli) -> Result<Self, UsageError> {
        match cli.subcommand {
            None => classic(cli.classic),
            Some(Subcommand::Info(args)) => Ok(Self::Info(args.into())),
            Some(Subcommand::Convert(args)) => args.try_into().map(Self::Convert),
            Some(Subcommand::Merge(args)) => args.try_into().map(Self::Merge),
            Some(Subcommand::Compare(args)) => args.try_into().map(Self::Compare),
            Some(Subcommand::Doctor(args)) => Ok(Self::Doctor(args.rpc)),
            Some(Subcommand::Report(args)) => {
                report_settings(args).map(|(settings, outputs)| Self::Report(settings, outputs))
            }
        }
    }
}

/// The command of a classic call. clap has already refused flags for writing beside flags for
/// evaluating, and an input beside a reference that is read.
fn classic(mut args: Args) -> Result<Command, UsageError> {
    check_devices("--device", &args.devices.device)?;
    check_devices("--ref-device", &args.evaluate.ref_device)?;
    if args.devices.list_devices {
        return Ok(Command::ListDevices(run_settings(&args)));
    }
    if let Some(reference) = args.evaluate.read_path.take() {
        return against_file(args, reference).map(Command::Evaluate);
    }
    let input = input(&mut args.input, args.write.format, args.n_ctx)?;
    let (output, ref_model) = (args.write.write_path.take(), args.evaluate.ref_model.take());
    match (input, output, ref_model) {
        (Some(input), None, Some(model)) => {
            against_model(args, input, model).map(Command::Evaluate)
        }
        (Some(input), Some(output), _) => write_settings(args, input, output).map(Command::Write),
        (Some(_), None, None) => wrong(
            "nothing to do: -t and --prompts-file need -w REF to write a reference, or --ref-model \
             MODEL to evaluate against it",
        ),
        (None, Some(_), _) => wrong("no text: -w needs -t TEXT or --prompts-file PROMPTS"),
        (None, None, Some(_)) => {
            wrong("no text: --ref-model needs -t TEXT or --prompts-file PROMPTS")
        }
        (None, None, None) => wrong(
            "nothing to do: give -t TEXT -w REF to write a reference, or -r REF or -t TEXT \
             --ref-model MODEL to evaluate against one",
        ),
    }
}

impl From<InfoArgs> for InfoSettings {
    fn from(args: InfoArgs) -> Self {
        Self {
            file: args.file,
            verify: args.verify,
            json: args.json,
            quiet: args.quiet,
        }
    }
}
