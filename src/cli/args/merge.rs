//! The flags of `kl merge`.

use std::path::PathBuf;

use super::paths::{file, input};
use crate::commands::output::Existing;
use crate::commands::settings::MergeSettings;

/// Join the parts that --shard has made of a reference, an evaluation or a map
///
/// The result is byte for byte what one run would have written.
#[derive(clap::Args, Debug)]
pub struct MergeArgs {
    /// File to write
    #[arg(value_name = "OUT", value_parser = file())]
    pub output: PathBuf,

    /// Parts to join, in any order: sidecars (.kls), maps, or references of kl
    #[arg(value_name = "IN", required = true, value_parser = input())]
    pub parts: Vec<PathBuf>,

    /// Accept an OUT that already is what the parts make; otherwise make it
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,

    /// Overwrite an existing output file
    #[arg(long)]
    pub force: bool,
}

impl From<MergeArgs> for MergeSettings {
    /// To resume is to accept an output that is what the parts make, and to replace a partial one.
    fn from(args: MergeArgs) -> Self {
        Self {
            output: args.output,
            parts: args.parts,
            existing: Existing::by_flags(args.force, args.resume.then_some(true)),
        }
    }
}
