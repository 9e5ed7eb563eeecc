//! The flags for the results of an evaluation.

use std::path::PathBuf;

use clap::value_parser;

use super::headings::RESULTS;
use super::paths::file;
use super::values::label;
use super::words::{cluster, stats};
use crate::cli::terminal::Detail;
use crate::commands::settings::{ResultSettings, Stats};
use crate::report::Condition;
use crate::stats::{ClusterRule, Confidence};

/// The flags for the results of an evaluation or of a comparison of rows, which `kl -r` and `kl compare` share.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = RESULTS)]
pub struct ResultArgs {
    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value_t)]
    pub confidence: Confidence,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long = "cluster", value_name = "window|block|auto", default_value = "auto",
        value_parser = cluster()
    )]
    pub clusters: ClusterRule,

    /// Statistics to report in addition to kl's own, comma-separated
    #[arg(long, value_name = "KINDS", value_parser = stats(), value_delimiter = ',')]
    pub stats: Vec<Stats>,

    /// Write the result as JSON; '-' writes it to stdout
    ///
    /// On stdout it replaces the report.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,

    /// Include every token's values in the JSON
    #[arg(long, requires = "json")]
    pub json_tokens: bool,

    /// Show where the KLD comes from: confidence, position, special tokens
    ///
    /// A table for each: mean KLD by the probability of the reference's top token, by position in
    /// the window, and where the next token is a special one. The JSON always has them.
    #[arg(long)]
    pub breakdown: bool,

    /// Print every number, not only those that most people decide by
    ///
    /// A run of several models prints a line for each, and a table at the end; with --full, each
    /// model's report too. --breakdown, --top-k and --stats print reports as well, and kl report X.kls
    /// --full prints one from a sidecar.
    #[arg(long)]
    pub full: bool,

    /// List the N tokens with the largest KLD, with their context
    ///
    /// With --temp it chooses among the N most probable tokens instead.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,

    /// Exit with code 3 if the condition holds, as in 'kld.mean > 0.01'; may repeat
    ///
    /// A condition also fails if it cannot be checked, or if tokens are left out or have an
    /// infinite KLD.
    #[arg(long = "fail-if", value_name = "CONDITION")]
    pub conditions: Vec<Condition>,

    /// With --fail-if, accept that tokens are left out or have an infinite KLD
    #[arg(long, requires = "conditions")]
    pub allow_excluded: bool,

    /// Name of the evaluation in reports [default: the file's name without .gguf]
    ///
    /// The per-token file gets it too: LABEL@REFERENCE.kls. So one model evaluated in two ways, as
    /// with another -ctk, is two rows. Of several models, give one for each, in their order.
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub label: Vec<String>,

    /// Per-token file to write [default: named after both sides, in the current folder]
    ///
    /// The default is MODEL@REFERENCE.kls, the files' names without their extensions. A finished one
    /// that is there is replaced by the same evaluation only, or with --force.
    #[arg(long, value_name = "PATH", value_parser = file(), conflicts_with = "no_sidecar")]
    pub sidecar: Option<PathBuf>,

    /// Do not write a per-token file
    #[arg(long)]
    pub no_sidecar: bool,
}

impl ResultArgs {
    /// The amount of each report that is shown.
    pub fn detail(&self) -> Detail {
        Detail {
            full: self.full,
            breakdown: self.breakdown,
        }
    }
}

/// The settings that these flags decide alone.
impl From<ResultArgs> for ResultSettings {
    fn from(args: ResultArgs) -> Self {
        Self {
            confidence: args.confidence,
            clusters: args.clusters,
            stats: args.stats,
            json_tokens: args.json_tokens,
            top_k: args.top_k,
            conditions: args.conditions,
            allow_excluded: args.allow_excluded,
            sidecar: args.sidecar,
            no_sidecar: args.no_sidecar,
            ..Self::default()
        }
    }
}
