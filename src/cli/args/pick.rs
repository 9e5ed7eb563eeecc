//! The flags of `kl pick`.

use std::path::PathBuf;

use clap::value_parser;
use kl_formats::MAX_N_CTX;

use super::headings::{EVALUATION, GENERAL, INPUT, REFERENCE, RESULTS};
use super::paths::{file, input, model};
use super::run::RunArgs;
use super::source::SourceArgs;
use super::sweep::cache_types;
use super::values::{above_0, max_rows, size};
use crate::engine::CacheType;
use crate::stats::Confidence;

/// Pick the quant to run, of a repository, a folder or some files
///
/// Measures how far each is from the original, on the original's answers to prompts that come with kl, times it, and
/// says which one to run: of those that fit the memory, none is nearer to the original by more than chance, and of
/// those that are as near, it is the fastest.
#[derive(clap::Args, Debug)]
#[command(override_usage = "kl pick hf:USER/REPO|FOLDER|MODEL...")]
pub struct PickArgs {
    /// Quants (GGUF): hf:USER/REPO for those of a repository, a folder, or files
    #[arg(required = true, value_name = "QUANTS", value_parser = model())]
    pub models: Vec<PathBuf>,

    /// Original to measure against (GGUF), or --ref-hf REPO:QUANT
    ///
    /// [default: the bf16, f16 or f32 among the quants, else the largest quant]
    #[arg(
        long = "original", value_name = "PATH", help_heading = REFERENCE, value_parser = input(),
        alias = "ref-model"
    )]
    pub ref_model: Option<PathBuf>,

    /// Measure only files whose quant matches, as in 'Q4_*,Q5_K_M,IQ*'
    #[arg(long, value_name = "GLOBS", value_delimiter = ',', help_heading = INPUT)]
    pub quants: Vec<String>,

    /// Remove each file that kl has loaded once it is measured
    ///
    /// So there are never more than two of them on the disk.
    #[arg(long, help_heading = INPUT)]
    pub discard: bool,

    #[command(flatten)]
    pub input: SourceArgs,

    /// Tokens in a window of a text [default: 512]
    #[arg(
        long = "window", value_name = "N", help_heading = INPUT,
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX))
    )]
    pub window: Option<u32>,

    /// Stop after N scored tokens of each quant, from windows in a seeded random order; -1: all
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = INPUT,
        default_value = "-1", value_parser = max_rows, alias = "n_tokens"
    )]
    pub max_rows: ::std::option::Option<u64>,

    /// Tokens of context that there must be memory for [default: 8192, or the model's if less]
    #[arg(
        short = 'c', long = "ctx-size", value_name = "N", help_heading = EVALUATION,
        value_parser = value_parser!(u64).range(1..), alias = "n-ctx"
    )]
    pub context: Option<u64>,

    /// Memory that weights, KV cache and buffers may take, as in 8GiB
    ///
    /// [default: what the devices that run it have free, or the machine]
    #[arg(long, value_name = "SIZE", help_heading = EVALUATION, value_parser = size)]
    pub memory: Option<u64>,

    /// Pick the fastest whose mean KLD is surely below X nats, by its interval
    #[arg(long, value_name = "X", help_heading = EVALUATION, value_parser = above_0)]
    pub max_kld: Option<f64>,

    /// Try each quant with each of these types of the KV cache, as in f16,q8_0
    ///
    /// The pick is then of a quant and a cache, under one memory.
    #[arg(
        long, value_name = "TYPES", help_heading = EVALUATION, value_parser = cache_types,
        conflicts_with_all = ["type_k", "type_v"]
    )]
    pub cache_types: Option<::std::vec::Vec<CacheType>>,

    /// Folder for the reference and the per-token files [default: NAME-pick]
    #[arg(short = 'w', long = "write-path", value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub folder: Option<PathBuf>,

    /// Write the result as JSON; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    /// Write a row for each quant as CSV; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub csv: Option<PathBuf>,

    /// Write a page to read in a browser, in one file
    #[arg(long, value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub html: Option<PathBuf>,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", help_heading = RESULTS, default_value_t)]
    pub confidence: Confidence,

    #[command(flatten)]
    pub run: RunArgs,

    /// Go on from what an earlier call with the same settings has measured
    #[arg(long, help_heading = GENERAL, conflicts_with = "force")]
    pub resume: bool,

    /// Overwrite what an earlier call has written
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,
}
