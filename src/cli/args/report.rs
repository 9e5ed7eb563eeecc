//! The flags of `kl report`.

use std::path::PathBuf;

use super::RESULTS;
use super::values::{file, input};
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

    /// Also print KLD by the reference's confidence, by position, by group and for special tokens
    #[arg(long)]
    pub breakdown: bool,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value = "0.95")]
    pub confidence: Confidence,

    /// What counts as one observation in the clustered intervals
    #[arg(long, value_name = "window|block|auto", default_value = "auto")]
    pub cluster: ClusterRule,

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

    /// Print only results, warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}
