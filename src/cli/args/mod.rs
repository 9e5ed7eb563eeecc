//! The flags as given; [`settings`](super::settings) checks what they mean together.

mod classic;
mod input;
mod model;
mod report;
mod results;
mod subcommands;
mod values;

use std::ffi::OsString;

use clap::{Args as _, CommandFactory as _, FromArgMatches as _, Id, Parser};

pub use classic::{Args, EvaluateArgs, WriteArgs};
pub use input::InputArgs;
pub use model::{ContextArgs, DeviceArgs};
pub use report::ReportArgs;
pub use results::ResultArgs;
pub use subcommands::{CompareArgs, ConvertArgs, DoctorArgs, InfoArgs, MergeArgs};

/// Measures how far a quantized GGUF has moved from its full-precision original: the KL divergence
/// of their next-token distributions, with error bars.
#[derive(Parser, Debug)]
#[command(
    name = "kl",
    version,
    max_term_width = 100,
    override_usage = USAGE,
    after_long_help = EXAMPLES,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    #[command(flatten)]
    pub classic: Args,
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,
}

/// The commands beside the classic calls.
#[derive(clap::Subcommand, Debug)]
pub enum Subcommand {
    Info(InfoArgs),
    Convert(ConvertArgs),
    Merge(MergeArgs),
    Compare(CompareArgs),
    Report(ReportArgs),
    Doctor(DoctorArgs),
}

const USAGE: &str = "\
kl -m MODEL -t TEXT -w REF            write a reference, once
       kl -m MODEL -r REF                    evaluate a quant against it
       kl -m MODEL -t TEXT --ref-model ORIG  both in one run, without a file
       kl <COMMAND>";

const EXAMPLES: &str = "\
Examples:
  kl -m fp16.gguf -t wiki.txt -w ref.gz              write a reference
  kl -m q4.gguf -r ref.gz -ngl 99                    evaluate one model
  kl -m q8.gguf -m q4.gguf -r ref.gz                 evaluate several
  kl -m q4.gguf --ref-model fp16.gguf -t wiki.txt    without a reference file
  kl -m fp16.gguf --prompts-file p.jsonl -w ref.gz   prompts, not a text
  kl info ref.gz --verify                            check a file
  kl convert ref.gz base.kld --format llama.cpp      convert a reference
  kl merge ref.gz ref.*.gz                           join the parts of --shard
  kl compare ref.gz other.npz                        compare without a model
  kl report *@ref.kls                                which model is better
  kl doctor                                          what to send with a problem

Exit codes: 0 success, 1 failure, 2 usage error, 3 a --fail-if condition holds

kl --generate man|complete-bash|complete-zsh|complete-fish prints the man page,
or completions for a shell";

/// The headings of `kl --help`.
const INPUT: &str = "Input";
const REFERENCE: &str = "Reference";
const EVALUATION: &str = "Evaluation";
const RESULTS: &str = "Results";
const MODEL: &str = "Model and devices";
const DECODING: &str = "Decoding";
const GENERAL: &str = "General";

/// Parses a command line whose flags are clap's (see [`short_flags`](super::short_flags)).
///
/// # Errors
/// Flags that clap refuses, and requests that it answers itself: help and version.
pub fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command().try_get_matches_from(args)?)
}

/// The whole command line, in which flags for writing and flags for evaluating exclude each other,
/// and a reference that is read excludes another input.
pub fn command() -> clap::Command {
    let mut command = Cli::command();
    let input = members(&command, InputArgs::group_id());
    let write = members(&command, WriteArgs::group_id());
    let mut evaluate = members(&command, EvaluateArgs::group_id());
    evaluate.extend(members(&command, ResultArgs::group_id()));
    // With -w, --confidence has always been ignored.
    evaluate.retain(|id| id != "confidence");
    // One by one: of two groups that exclude each other, clap's error lists every member.
    command = command.mut_args(|arg| match arg.get_id() {
        id if input.contains(id) => arg.conflicts_with("read_path"),
        id if write.contains(id) => arg.conflicts_with_all(&evaluate),
        _ => arg,
    });
    // clap adds its own flags and its command `help` when the command is built.
    command.build();
    command = command.mut_subcommand("help", |help| help.hide(true));
    command.mut_args(|arg| match arg.get_id().as_str() {
        "help" => arg.help_heading(GENERAL),
        "version" => arg.help_heading(GENERAL).hide_short_help(true),
        _ => arg,
    })
}

fn members(command: &clap::Command, group: Option<Id>) -> Vec<Id> {
    let mut groups = command.get_groups();
    let group = groups.find(|candidate| Some(candidate.get_id()) == group.as_ref());
    group.map_or_else(Vec::new, |group| group.get_args().cloned().collect())
}
