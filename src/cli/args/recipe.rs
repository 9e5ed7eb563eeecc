//! The flags of `kl recipe`.

use std::path::PathBuf;

use clap::{ArgGroup, value_parser};
use kl_formats::{GgmlType, MAX_N_CTX};

use super::headings::{CHECK, GENERAL, GOAL, RESULTS, WRITE};
use super::paths::{file, input, text};
use super::run::RunArgs;
use super::values::{above_0, max_rows, size};
use super::words::cluster;
use crate::cli::request::recipe::RecipeRequest;
use crate::cli::results::{Outputs, made_again};
use crate::commands::settings::RunSettings;
use crate::input::{DEFAULT_N_CTX, Source};
use crate::recipe::mathematics::Goal;
use crate::recipe::settings::{RecipeGoal, RecipeSettings};
use crate::stats::{ClusterRule, Confidence};

/// Choose the best type for each tensor, for a size
///
/// Reads the map that kl sensitivity wrote. With -m and -t the recipe is also measured, and with
/// --quantize its file is written; without them no model is run.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "kl recipe MAP --size SIZE|--bpw BITS|--like MODEL|--kld NATS [OPTIONS]"
)]
#[command(group = ArgGroup::new("goal").required(true).args(["size", "bpw", "like", "kld"]))]
pub struct RecipeArgs {
    /// Map that kl sensitivity wrote
    #[arg(value_name = "MAP", value_parser = input())]
    pub map: PathBuf,

    /// Most bytes of the file, as in 4.2G, 900M or 5.5GB
    ///
    /// K, M and G, as KiB, MiB and GiB, are powers of 1024, as ls -h shows them; KB, MB and GB are
    /// powers of 1000, as Hugging Face shows them.
    #[arg(long, value_name = "SIZE", help_heading = GOAL, value_parser = size)]
    pub size: Option<u64>,

    /// Most bits per parameter
    #[arg(long, value_name = "BITS", help_heading = GOAL, value_parser = above_0)]
    pub bpw: Option<f64>,

    /// Model (GGUF) whose size the file must not exceed
    ///
    /// With -t, it is measured on the same tokens as the recipe.
    #[arg(long, value_name = "PATH", help_heading = GOAL, value_parser = input())]
    pub like: Option<PathBuf>,

    /// Highest predicted KLD, in nats: the smallest file that reaches it
    #[arg(long, value_name = "NATS", help_heading = GOAL, value_parser = above_0)]
    pub kld: Option<f64>,

    /// Types to choose from, as in q4_K,q6_K [default: those of the map]
    #[arg(long, value_name = "TYPES", help_heading = GOAL, value_delimiter = ',')]
    pub types: Vec<GgmlType>,

    /// File to write for llama-quantize --tensor-type-file
    #[arg(
        short = 'w', long = "write-path", value_name = "PATH", help_heading = RESULTS,
        value_parser = file(), alias = "write_path"
    )]
    pub output: Option<PathBuf>,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value_t, help_heading = RESULTS)]
    pub confidence: Confidence,

    /// Write the recipe as JSON; '-' writes it to stdout
    ///
    /// On stdout it replaces the text.
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    /// Write a page to read in a browser, in one file
    #[arg(long, value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub html: Option<PathBuf>,

    /// JSON of kl report, whose quants the page draws beside the recipe
    #[arg(
        long, value_name = "PATH", help_heading = RESULTS, value_parser = input(),
        requires = "html"
    )]
    pub report: Option<PathBuf>,

    /// Original that the map was made of (GGUF)
    #[arg(short, long, value_name = "PATH", help_heading = CHECK, value_parser = input())]
    pub model: Option<PathBuf>,

    /// Text to measure the recipe on, another than the map's
    ///
    /// '-' reads stdin, 'starter' is the text that comes with kl.
    ///
    /// The original's rows stay in memory, and its tensors are exchanged there: no file is written.
    /// If prediction and measurement disagree, one more round is measured around the recipe, on
    /// windows that are kept back for it.
    #[arg(
        short, long, value_name = "PATH", help_heading = CHECK, value_parser = text(),
        requires = "model"
    )]
    pub text_path: Option<PathBuf>,

    /// Tokens in a window
    #[arg(
        short = 'c', long, value_name = "N", help_heading = CHECK, default_value_t = DEFAULT_N_CTX,
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX)),
        aliases = ["ctx-size", "n_ctx"]
    )]
    pub n_ctx: u32,

    /// Stop after N scored tokens, in whole windows in a seeded random order; -1: all
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = CHECK,
        default_value = "-1", value_parser = max_rows, alias = "n_tokens"
    )]
    pub max_rows: ::std::option::Option<u64>,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long = "cluster", value_name = "window|block|auto", help_heading = CHECK,
        default_value = "auto", value_parser = cluster()
    )]
    pub clusters: ClusterRule,

    /// Importance matrix that the map was made with
    #[arg(long, value_name = "PATH", help_heading = CHECK, value_parser = input())]
    pub imatrix: Option<PathBuf>,

    /// Quantized model to write (GGUF)
    ///
    /// llama.cpp's own quantizer writes it.
    #[arg(
        long, value_name = "PATH", help_heading = WRITE, value_parser = file(), requires = "model"
    )]
    pub quantize: Option<PathBuf>,

    #[command(flatten)]
    pub run: RunArgs,

    /// Overwrite existing output files
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,
}

impl RecipeArgs {
    /// The goal; `None` without any of its flags.
    fn goal(&self) -> Option<RecipeGoal> {
        let size = self.size.map(Goal::Size);
        let goal = size.or(self.bpw.map(Goal::Bpw)).or(self.kld.map(Goal::Kld));
        let like = self.like.clone().map(RecipeGoal::Like);
        goal.map(RecipeGoal::Number).or(like)
    }
}

impl TryFrom<RecipeArgs> for RecipeRequest {
    type Error = String;

    /// # Errors
    /// If no goal is given, which clap refuses.
    fn try_from(args: RecipeArgs) -> Result<Self, String> {
        let goal = args.goal();
        let text = args.text_path.as_deref();
        let mut run = RunSettings::from(args.run);
        run.model.is_exchangeable = true;
        let settings = RecipeSettings {
            map: args.map,
            goal: goal.ok_or("--size, --bpw, --like or --kld is needed")?,
            types: args.types,
            output: args.output,
            quantize: args.quantize,
            may_replace: args.force,
            confidence: args.confidence,
            model: args.model,
            text: text.map(|path| Source::one_text(path, args.n_ctx)),
            max_rows: args.max_rows,
            clusters: args.clusters,
            imatrix: args.imatrix,
            run,
        };
        let outputs = Outputs {
            json: args.json,
            csv: None,
            html: args.html,
            existing: made_again(args.force),
        };
        Ok(Self {
            settings,
            outputs,
            report: args.report,
        })
    }
}
