//! The flags of `kl info`.

use std::path::PathBuf;

use super::paths::input;

/// Show what files hold; with --verify, check every byte of them
#[derive(clap::Args, Debug)]
pub struct InfoArgs {
    /// Reference of kl, kl.py or llama-perplexity, sidecar (.kls), map, model (GGUF), .npz, or folder
    /// of N.safetensors; its format is detected
    #[arg(value_name = "FILE", required = true, value_parser = input())]
    pub files: Vec<PathBuf>,

    /// Read every byte and check every checksum, of a model every weight; exit with code 1 if the file
    /// is damaged
    #[arg(long)]
    pub verify: bool,

    /// Model to compare a quant with: its weights by the error that their types should give, its
    /// tensors, its metadata
    #[arg(long, value_name = "PATH", requires = "verify", value_parser = input())]
    pub original: Option<PathBuf>,

    /// Also print the prompts of a reference as the model read them, and their answers
    #[arg(long)]
    pub prompts: bool,

    /// Model for --prompts whose vocabulary has the texts of tokens: the one that wrote the
    /// reference, or a quant of it [default: the former, from this folder or the reference's]
    #[arg(short, long, value_name = "PATH", requires = "prompts", value_parser = input())]
    pub model: Option<PathBuf>,

    /// Print JSON; of several files, a list
    #[arg(long)]
    pub json: bool,
}
