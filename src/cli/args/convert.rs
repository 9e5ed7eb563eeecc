//! The flags of `kl convert`.

use std::path::PathBuf;

use kl_formats::{Encoding, Kind};

use super::paths::{file, input};
use super::values::{bos, row_encoding};
use super::words::written_kind;
use crate::commands::settings::Bos;

/// Convert a reference to another format, without the model
///
/// Warns about what the new file will lack; what its format cannot hold at all is an error.
#[derive(clap::Args, Debug)]
pub struct ConvertArgs {
    /// Reference of kl, kl.py or llama-perplexity; its format is detected
    #[arg(value_name = "IN", value_parser = input())]
    pub input: PathBuf,

    /// Reference to write
    #[arg(value_name = "OUT", value_parser = file())]
    pub output: PathBuf,

    /// Format of the reference to write
    #[arg(long, value_name = "FORMAT", value_parser = written_kind())]
    pub format: Kind,

    /// How kl's own format stores a logit: u16 (half the size) or f32 (exact) [default: u16]
    #[arg(long, value_name = "u16|f32", value_parser = row_encoding)]
    pub encoding: Option<Encoding>,

    /// BOS that the model of a base file put in place of each window's first token
    ///
    /// llama.cpp's base files do not record it. With none, the model put no BOS there.
    #[arg(long, value_name = "ID|none", value_parser = bos)]
    pub bos: Option<Bos>,

    /// Overwrite an existing output file
    #[arg(long)]
    pub force: bool,
}
