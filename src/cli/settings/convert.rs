//! The flags of `kl convert`.

use kl_formats::native;

use super::paths;
use super::run::default_threads;
use super::usage_error::{UsageError, wrong};
use super::write::target;
use crate::cli::args::ConvertArgs;
use crate::commands::settings::ConvertSettings;

impl TryFrom<ConvertArgs> for ConvertSettings {
    type Error = UsageError;

    fn try_from(args: ConvertArgs) -> Result<Self, UsageError> {
        if args.encoding.is_some() && args.format != native::KIND {
            return wrong("--encoding needs --format kl: every other format has its own");
        }
        let output = std::slice::from_ref(&args.output);
        paths::check(std::slice::from_ref(&args.input), paths::none, output)?;
        Ok(Self {
            target: target(args.format, args.encoding)?,
            input: args.input,
            output: args.output,
            bos: args.bos,
            threads: default_threads(),
            force: args.force,
            quiet: args.quiet,
        })
    }
}
