//! The flags of `kl merge`.

use super::paths;
use super::usage_error::{UsageError, wrong};
use crate::cli::args::MergeArgs;
use crate::commands::settings::MergeSettings;

impl TryFrom<MergeArgs> for MergeSettings {
    type Error = UsageError;

    fn try_from(args: MergeArgs) -> Result<Self, UsageError> {
        if paths::is_among(&args.output, &args.parts) {
            return wrong(format!(
                "{}: is the output, and among the parts: name the parts so that a pattern for them does not match it, as in ref.*.gz",
                args.output.display()
            ));
        }
        paths::check(&args.parts, paths::none, std::slice::from_ref(&args.output))?;
        Ok(Self {
            output: args.output,
            parts: args.parts,
            resume: args.resume,
            force: args.force,
            quiet: args.quiet,
        })
    }
}
