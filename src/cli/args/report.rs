//! The flags of `kl report`.

use std::path::PathBuf;

use clap::value_parser;

use super::headings::RESULTS;
use super::paths::{file, input};
use super::values::near;
use super::words::cluster;
use crate::cli::request::report::{ReportForm, ReportRequest};
use crate::cli::results::{Outputs, made_again};
use crate::cli::terminal::Detail;
use crate::commands::settings::ReportSettings;
use crate::report::Condition;
use crate::report::comparison::DEFAULT_NEAR;
use crate::stats::{ClusterRule, Confidence};

/// Compare evaluations: which is better, and is the difference real
///
/// Reads their sidecars, and needs no model and no reference. Evaluations against one reference are
/// compared token by token; what was not measured alike is listed apart, with the reason.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// Sidecars (.kls) that kl -r or kl compare wrote, or folders of them
    #[arg(value_name = "FILE", required = true, value_parser = input())]
    pub paths: Vec<PathBuf>,

    /// Compare two models in depth
    #[arg(long, conflicts_with_all = ["breakdown", "markdown", "model_card", "csv", "html"])]
    pub pair: bool,

    /// Exit with code 3 if the condition holds for a model, as in 'kld.mean > 0.01'; may repeat
    ///
    /// With --pair, for the two compared, as in 'ratio.upper > 1.05'. A condition also fails if it
    /// cannot be checked, or if tokens are left out or have an infinite KLD; one on the ratio needs
    /// 100 windows.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,

    /// With --fail-if, accept that tokens are left out or have an infinite KLD
    #[arg(long, requires = "fail_if")]
    pub allow_excluded: bool,

    /// Print every number, not only those that most people decide by
    #[arg(long)]
    pub full: bool,

    /// Also print KLD by the reference's confidence, by position, by group and for special tokens
    #[arg(long)]
    pub breakdown: bool,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value_t)]
    pub confidence: Confidence,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long, value_name = "window|block|auto", default_value = "auto", value_parser = cluster()
    )]
    pub cluster: ClusterRule,

    /// Times as far as the best that makes no difference
    #[arg(long, value_name = "RATIO", default_value_t = DEFAULT_NEAR, value_parser = near)]
    pub near: f64,

    /// Size models by weights and KV cache together, with a context of N tokens
    ///
    /// The Pareto front is then that of the memory which each takes at your context. For sidecars that
    /// record the sizes of the cache.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub for_context: Option<u64>,

    /// JSON of kl check, whose floor is drawn: what rounding alone does to the set-up
    #[arg(long, value_name = "PATH", value_parser = input(), conflicts_with = "pair")]
    pub floor: Option<PathBuf>,

    /// Print Markdown
    #[arg(long, help_heading = RESULTS)]
    pub markdown: bool,

    /// Print the metadata and the table for a Hugging Face model card
    #[arg(long, help_heading = RESULTS)]
    pub model_card: bool,

    /// Write the result as JSON; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    /// Write a row per model as CSV; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub csv: Option<PathBuf>,

    /// Write a page to read in a browser, in one file
    #[arg(long, value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub html: Option<PathBuf>,

    /// Overwrite existing output files that are not earlier reports
    #[arg(long)]
    pub force: bool,
}

impl From<ReportArgs> for ReportRequest {
    fn from(args: ReportArgs) -> Self {
        let settings = ReportSettings {
            paths: args.paths,
            pair: args.pair,
            fail_if: args.fail_if,
            allow_excluded: args.allow_excluded,
            confidence: args.confidence,
            cluster: args.cluster,
            near: args.near,
            for_context: args.for_context,
            compares_every_two: false,
            floor: args.floor,
        };
        let outputs = Outputs {
            json: args.json,
            csv: args.csv,
            html: args.html,
            existing: made_again(args.force),
        };
        Self {
            settings,
            outputs,
            form: if args.markdown {
                ReportForm::Markdown
            } else if args.model_card {
                ReportForm::ModelCard
            } else {
                ReportForm::Text
            },
            detail: Detail {
                full: args.full,
                breakdown: args.breakdown,
            },
        }
    }
}
