//! The command line: clap's structs, which hold flags as they were given. A file has those of one command, or of a group
//! of flags that commands share, and the conversion that makes settings of them. [`rules`](super::rules) checks before
//! that what they mean together.

mod check;
mod classic;
mod compare;
mod convert;
mod doctor;
mod headings;
mod info;
mod merge;
mod model;
mod paths;
mod pick;
mod recipe;
mod report;
mod results;
mod run;
mod sensitivity;
mod source;
mod sweep;
mod values;
mod words;

use std::ffi::OsString;

use clap::{Arg, ArgAction, Args as _, CommandFactory as _, FromArgMatches as _, Id, Parser};

use super::names;
pub use check::CheckArgs;
pub use classic::{Args, EvaluateArgs, WriteArgs};
pub use compare::CompareArgs;
pub use convert::ConvertArgs;
pub use doctor::DoctorArgs;
use headings::{DECODING, GENERAL, MODEL};
pub use info::InfoArgs;
pub use merge::MergeArgs;
pub use pick::PickArgs;
pub use recipe::RecipeArgs;
pub use report::ReportArgs;
pub use results::ResultArgs;
pub use sensitivity::SensitivityArgs;
use source::SourceArgs;
pub use sweep::grid;

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
    subcommand_negates_reqs = true
)]
pub struct Cli {
    #[command(flatten)]
    pub classic: Args,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The command that a call names, with its flags.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    Pick(Box<PickArgs>),
    Info(InfoArgs),
    Convert(ConvertArgs),
    Merge(MergeArgs),
    Compare(Box<CompareArgs>),
    Report(ReportArgs),
    Sensitivity(Box<SensitivityArgs>),
    Recipe(Box<RecipeArgs>),
    Check(Box<CheckArgs>),
    Doctor(DoctorArgs),
}

const USAGE: &str = "\
kl -m MODEL -t TEXT -w REF            write a reference, once
       kl -m MODEL -r REF                    evaluate a quant against it
       kl -m MODEL -t TEXT --ref-model ORIG  both in one run, without a file
       kl <COMMAND>";

const EXAMPLES: &str = "\
Examples:
  kl pick hf:USER/REPO                               which quant to run
  kl -m fp16.gguf -t wiki.txt -w ref.gz              write a reference
  kl -m q4.gguf -r ref.gz -ngl 99                    evaluate one model
  kl -m q8.gguf -m q4.gguf -r ref.gz                 evaluate several
  kl -hf USER/REPO:Q4_K_M -r ref.gz                  by its name on Hugging Face
  kl -m q4.gguf --ref-model fp16.gguf -t wiki.txt    without a reference file
  kl -m fp16.gguf --prompts starter -w ref.gz --generate 64   chat answers
  kl info ref.gz --verify                            check a file
  kl convert ref.gz base.kld --format llama.cpp      convert a reference
  kl merge ref.gz ref.*.gz                           join the parts of --shard
  kl compare ref.gz other.npz                        compare without a model
  kl report *@ref.kls                                which model is better
  kl sensitivity -m fp16.gguf -t wiki.txt -w map.jsonl   which tensors hurt
  kl recipe map.jsonl --bpw 4.5 -w recipe.txt        the best mixture of that size
  kl check -m q4.gguf -ngl 99                        does this build compute it
  kl doctor                                          what to send with a problem

Exit codes: 0 success, 1 failure, 2 usage error, 3 a --fail-if condition holds, or
kl check finds something wrong

kl --generate man|complete-bash|complete-zsh|complete-fish prints the man page,
or completions for a shell";

/// The flags of `kl -h`, by clap's names; `kl --help` shows all.
const IN_SHORT_HELP: [&str; 9] = [
    "model",
    "text_path",
    "n_ctx",
    "write_path",
    "read_path",
    "ref_model",
    "json",
    "n_gpu_layers",
    "help",
];

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
    let input = members(&command, SourceArgs::group_id());
    let write = members(&command, WriteArgs::group_id());
    let mut evaluate = members(&command, EvaluateArgs::group_id());
    let results = members(&command, ResultArgs::group_id());
    evaluate.extend(results.iter().cloned());
    // With -w, --confidence has always been ignored, and --top-k chooses among tokens.
    evaluate.retain(|id| id != "confidence" && id != "top_k");
    // One by one: of two groups that exclude each other, clap's error lists every member.
    command = command.mut_args(|arg| match arg.get_id() {
        id if input.contains(id) => arg.conflicts_with("read_path"),
        id if write.contains(id) => arg.conflicts_with_all(&evaluate),
        _ => arg,
    });
    command = names::with_flags(command).mut_args(common);
    command = command.mut_subcommands(|subcommand| {
        let is_compare = subcommand.get_name() == "compare";
        names::with_flags(subcommand)
            .mut_args(common)
            .mut_args(|arg| {
                // How a model is run is the same everywhere.
                let is_of_run = matches!(arg.get_help_heading(), Some(MODEL | DECODING));
                if is_of_run || is_compare && results.contains(arg.get_id()) {
                    in_short_help(arg)
                } else {
                    arg
                }
            })
    });
    // Who asks which quant to run has not thought about layers yet.
    command = command.mut_subcommand("pick", |pick| {
        pick.mut_arg("n_gpu_layers", |layers| layers.default_value("auto"))
    });
    // clap adds its own flags and its command `help` when the command is built.
    command.build();
    command = command.mut_subcommand("help", |help| help.hide(true));
    command = command.mut_args(in_short_help);
    command.mut_args(|arg| match arg.get_id().as_str() {
        "help" | "version" => arg.help_heading(GENERAL),
        _ => arg,
    })
}

/// Sets what all flags have in common. A switch may repeat: it means the same each time. Of a flag with
/// one value, clap refuses a second. A number below 0 is a value, so that its error names the flag.
fn common(arg: Arg) -> Arg {
    let id = arg.get_id().clone();
    let is_path = arg.get_value_names().is_some_and(|names| names == ["PATH"]);
    match arg.get_action() {
        ArgAction::SetTrue => arg.overrides_with(id),
        _ if arg.is_positional() || is_path => arg,
        _ => arg.allow_negative_numbers(true),
    }
}

/// Hides a flag from `-h` unless it is listed for it.
fn in_short_help(arg: Arg) -> Arg {
    let is_listed = IN_SHORT_HELP.contains(&arg.get_id().as_str());
    arg.hide_short_help(!is_listed)
}

fn members(command: &clap::Command, group: Option<Id>) -> Vec<Id> {
    let mut groups = command.get_groups();
    let group = groups.find(|candidate| Some(candidate.get_id()) == group.as_ref());
    group.map_or_else(Vec::new, |group| group.get_args().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags that may repeat, each of whose values counts.
    const REPEATABLE: &str =
        "--device --fail-if --label --override-tensor --ref-device --rpc --stats --types";

    /// Those that may repeat in the classic calls and in `kl pick` alone.
    const REPEATABLE_IN_CLASSIC: &str = "--model --quants --span --sweep --text-path";

    /// Values of which every flag accepts one.
    const VALUES: &str = "ctk=f16|she=She..!|2|ratio > 1|0.5|5%|0/2|all|on|none|same|auto|u16|kl|q8_0|\
         a=CPU|kld.mean>1|logits|host:1";

    /// Flags whose value may start with a minus: names, patterns, and the index of a device, which is checked
    /// where it is used.
    const NAMES: &str = "--label --device --ref-device --main-gpu --tensors --quants --hf-repo --hf-file \
         --ref-hf";

    fn is_in(list: &str, flag: &str) -> bool {
        list.split(' ').any(|listed| listed == flag)
    }

    /// Every flag of every command, with the command's name: none for the classic calls.
    fn flags() -> Vec<(Option<String>, Arg)> {
        let command = command();
        let of = |name: Option<&str>, command: &clap::Command| {
            let flags = command.get_arguments().filter(|arg| !arg.is_positional());
            let name = name.map(str::to_owned);
            let flags = flags.map(|arg| (name.clone(), arg.clone()));
            flags.collect::<Vec<_>>()
        };
        let mut all = of(None, &command);
        for subcommand in command.get_subcommands() {
            all.extend(of(Some(subcommand.get_name()), subcommand));
        }
        all.retain(|(name, _)| name.as_deref() != Some("help"));
        all
    }

    /// What clap answers to a call of a command with these words after it.
    fn answer(command: Option<&str>, words: &[&str]) -> String {
        let words = ["kl"]
            .into_iter()
            .chain(command)
            .chain(words.iter().copied());
        let words: Vec<_> = words.map(OsString::from).collect();
        match parse(&words) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_the_flags_that_collect_values_repeat() {
        for (command, flag) in flags() {
            let long = format!("--{}", flag.get_long().unwrap());
            let takes_value = flag.get_action().takes_values();
            let is_valid = |value: &&str| {
                let answer = answer(command.as_deref(), &[&long, value]);
                !answer.contains("invalid value")
            };
            let mut words = vec![&*long];
            words.extend(takes_value.then(|| VALUES.split('|').find(is_valid).expect(&long)));
            let words = words.repeat(2);
            let answer = answer(command.as_deref(), &words);
            let is_refused = answer.contains("cannot be used multiple times");
            let may_repeat = !takes_value
                || is_in(REPEATABLE, &long)
                || [None, Some("pick")].contains(&command.as_deref())
                    && is_in(REPEATABLE_IN_CLASSIC, &long);
            assert_eq!(is_refused, !may_repeat, "{command:?} {long}: {answer}");
            assert!(!is_refused || answer.contains(&long), "{long}: {answer}");
        }
    }

    #[test]
    fn a_number_below_0_is_refused_by_the_name_of_its_flag() {
        for (command, flag) in flags() {
            let long = format!("--{}", flag.get_long().unwrap());
            let names = flag.get_value_names().unwrap_or_default();
            if !flag.get_action().takes_values() || names == ["PATH"] {
                continue;
            }
            let answer = answer(command.as_deref(), &[&long, "-7"]);
            let is_named = answer.contains(&format!("invalid value '-7' for '{long} "));
            let is_name = is_in(NAMES, &long);
            assert!(is_named || is_name, "{command:?} {long}: {answer}");
        }
    }
}
