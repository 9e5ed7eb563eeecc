//! The flags of `kl check`.

use std::path::PathBuf;

use clap::value_parser;
use kl_formats::MAX_N_CTX;

use super::headings::{GENERAL, INPUT, RESULTS};
use super::paths::{input, text};
use super::run::RunArgs;
use crate::cli::request::check::CheckRequest;
use crate::cli::results::Outputs;
use crate::commands::output::Existing;
use crate::commands::settings::CheckSettings;

/// Check whether this build computes a model, on each device
///
/// Runs the model against itself: on the CPU with plain settings, then with one setting after another
/// and with all of yours together, on each device. Differences that rounding explains are listed as
/// such; where a kernel computes something else, the verdict names the device, the setting and the first
/// layer that differs. Exits with code 3 if anything is wrong.
#[derive(clap::Args, Debug)]
#[command(override_usage = "kl check -m MODEL [OPTIONS]")]
pub struct CheckArgs {
    /// Model to check (GGUF)
    #[arg(short, long, value_name = "PATH", help_heading = INPUT, value_parser = input())]
    pub model: PathBuf,

    /// Text to run it over: a file, '-' for stdin, or 'starter' [default: the prompts that come with kl]
    #[arg(
        short, long, value_name = "PATH", help_heading = INPUT, value_parser = text(),
        alias = "text_path"
    )]
    pub text_path: Option<PathBuf>,

    /// Tokens in a window [default: 512, or fewer if -n or the model's positions are]
    #[arg(
        short = 'c', long, value_name = "N", help_heading = INPUT,
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX)),
        aliases = ["ctx-size", "n_ctx"]
    )]
    pub n_ctx: Option<u32>,

    /// Most tokens of a setting; a quarter of them where batches are small or one thread computes
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = INPUT,
        default_value = "2048", value_parser = value_parser!(u32).range(2..), alias = "n_tokens"
    )]
    pub max_tokens: u32,

    /// Write the result as JSON; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    #[command(flatten)]
    pub run: RunArgs,

    /// Overwrite an existing output file
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,
}

impl From<CheckArgs> for CheckRequest {
    fn from(args: CheckArgs) -> Self {
        let settings = CheckSettings {
            model: args.model,
            text: args.text_path,
            n_ctx: args.n_ctx,
            max_tokens: args.max_tokens,
            run: args.run.into(),
        };
        let outputs = Outputs {
            json: args.json,
            csv: None,
            html: None,
            existing: Existing::by_flags(args.force, None),
        };
        Self { settings, outputs }
    }
}
