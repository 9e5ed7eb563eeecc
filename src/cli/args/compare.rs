//! The flags of `kl compare`.

use std::path::PathBuf;

use super::paths::input;
use super::results::ResultArgs;
use super::values::max_rows;
use super::words::compare_vocab;
use crate::commands::settings::ComparedVocabulary;

/// Compare logits that are already stored, without a model
///
/// Reports how far each OTHER is from REF.
#[derive(clap::Args, Debug)]
pub struct CompareArgs {
    /// Reference of kl, kl.py or llama-perplexity, .npz, or folder of N.safetensors; its format is
    /// detected
    #[arg(value_name = "REF", value_parser = input())]
    pub reference: PathBuf,

    /// File to compare with REF, of any of these formats; may repeat
    #[arg(value_name = "OTHER", required = true, value_parser = input())]
    pub others: Vec<PathBuf>,

    /// Stop after N rows, skipping windows that only REF has; -1: all
    #[arg(short = 'n', long = "n-tokens", value_name = "N", default_value = "-1", value_parser = max_rows)]
    pub max_rows: ::std::option::Option<u64>,

    /// Vocabulary entries to compare if the sizes differ [default: same]
    ///
    /// Probabilities are renormalised over the entries compared.
    #[arg(
        long = "vocab", value_name = "same|common", value_parser = compare_vocab(),
        default_value = "same", hide_default_value = true
    )]
    pub vocabulary: ComparedVocabulary,

    /// Overwrite existing output files
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub results: ResultArgs,
}
