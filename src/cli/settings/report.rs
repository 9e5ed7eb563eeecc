//! The flags of `kl report`.

use std::path::PathBuf;

use super::paths;
use super::usage_error::{UsageError, wrong};
use crate::cli::args::ReportArgs;
use crate::commands::is_listed;
use crate::commands::settings::ReportSettings;

/// What `kl report` prints and writes.
#[derive(Debug)]
pub struct ReportOutputs {
    /// What goes to stdout.
    pub shown: Shown,
    pub breakdown: bool,
    pub json: Option<PathBuf>,
    pub csv: Option<PathBuf>,
    pub html: Option<PathBuf>,
    /// Whether to overwrite files that are not earlier reports.
    pub force: bool,
    /// Whether to print results, warnings and errors only.
    pub quiet: bool,
}

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Text,
    Markdown,
    ModelCard,
    Json,
    Csv,
}

/// Splits the flags into what is compared and where it goes.
pub(super) fn report_settings(
    args: ReportArgs,
) -> Result<(ReportSettings, ReportOutputs), UsageError> {
    let is_stdout =
        |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let printed = [
        (args.markdown, Shown::Markdown),
        (args.model_card, Shown::ModelCard),
        (is_stdout(&args.json), Shown::Json),
        (is_stdout(&args.csv), Shown::Csv),
    ];
    let printed: Vec<Shown> = printed
        .into_iter()
        .filter_map(|(is, what)| is.then_some(what))
        .collect();
    let shown = match printed.as_slice() {
        [] => Shown::Text,
        [only] => *only,
        _ => {
            return wrong(
                "only one of --markdown, --model-card, --json - and --csv - can go to stdout: \
                 name a file for the other",
            );
        }
    };
    let to_file = |path: Option<PathBuf>| path.filter(|path| path.as_os_str() != "-");
    let outputs = ReportOutputs {
        shown,
        breakdown: args.breakdown,
        json: to_file(args.json),
        csv: to_file(args.csv),
        html: args.html,
        force: args.force,
        quiet: args.quiet,
    };
    paths::check_distinct(&[
        ("--json", outputs.json.as_ref()),
        ("--csv", outputs.csv.as_ref()),
        ("--html", outputs.html.as_ref()),
    ])?;
    let written = [&outputs.json, &outputs.csv, &outputs.html];
    let written: Vec<PathBuf> = written.into_iter().flatten().cloned().collect();
    paths::check(&args.paths, is_listed, &written)?;
    let settings = ReportSettings {
        paths: args.paths,
        confidence: args.confidence,
        clusters: args.cluster,
        pair: args.pair,
    };
    Ok((settings, outputs))
}
