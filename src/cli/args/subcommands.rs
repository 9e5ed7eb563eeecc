//! The flags of `kl info`, `kl report` and `kl doctor`.

use std::path::PathBuf;

use crate::commands::settings::RESULTS;
use crate::commands::settings::values::{cluster, file, input, near};
use crate::engine::server_address;
use crate::report::Condition;
use crate::report::comparison::NEAR;
use crate::stats::{ClusterRule, Confidence};

/// Show what files hold; with --verify, check every byte of them
#[derive(clap::Args, Debug)]
pub struct InfoArgs {
    /// Reference of kl, kl.py or llama-perplexity, sidecar (.kls), map, model (GGUF), .npz, or folder
    /// of N.safetensors; its format is detected
    #[arg(value_name = "FILE", required = true, value_parser = input())]
    pub files: Vec<PathBuf>,

    /// Read every byte and check every checksum; exit with code 1 if the file is damaged
    #[arg(long)]
    pub verify: bool,

    /// Also print the prompts of a reference as the model read them, and their answers
    #[arg(long)]
    pub prompts: bool,

    /// Model for --prompts whose vocabulary has the texts of tokens: the one that wrote the
    /// reference, or a quant of it [default: the former, from this folder or the reference's]
    #[arg(short, long, value_name = "PATH", requires = "prompts", value_parser = file())]
    pub model: Option<PathBuf>,

    /// Print JSON; of several files, a list
    #[arg(long)]
    pub json: bool,

    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

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
    #[arg(long, value_name = "CONDITION", value_parser = Condition::of_report)]
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
    #[arg(long, value_name = "P", default_value = "0.95")]
    pub confidence: Confidence,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long, value_name = "window|block|auto", default_value = "auto", value_parser = cluster()
    )]
    pub cluster: ClusterRule,

    /// Times as far as the best that makes no difference
    #[arg(long, value_name = "RATIO", default_value_t = NEAR, value_parser = near)]
    pub near: f64,

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

/// Show how kl was built and what it runs on, for reports of problems
///
/// Prints versions, backends, devices, CPU, memory, disks, limits, and the environment variables that
/// change what llama.cpp does; -v prints the same before a run. Exits with code 1 if it finds a
/// problem, which a line PROBLEM states.
#[derive(clap::Args, Debug)]
pub struct DoctorArgs {
    /// Servers (llama.cpp's ggml-rpc-server) to try
    #[arg(long, value_name = "HOST:PORT,...", value_parser = server_address, value_delimiter = ',')]
    pub rpc: Vec<String>,
}
