//! What the commands that evaluate show: the results as they come, and whether they pass.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::results::{Form, Results};
use crate::cli::terminal::{Detail, Terminal};
use crate::cli::{EXIT_CONDITION, stop};
use crate::commands::Observer;
use crate::commands::settings::ResultSettings;
use crate::report::number::count_of;
use crate::report::{ModelReport, Report};

/// Runs an evaluation of `n` models or files, and shows its results: each as it comes, and all of them at the end.
///
/// # Errors
/// If one of them could not be evaluated, or an output not be written.
pub fn show_evaluation(
    settings: &ResultSettings,
    json: &Option<PathBuf>,
    detail: Detail,
    n: usize,
    quiet: bool,
    evaluate: impl FnOnce(&dyn Observer) -> Result<Report>,
) -> Result<ExitCode> {
    let brief = detail.is_brief(n, settings);
    let results = Results::new([(json, Form::Json(""))], settings.existing)?;
    let terminal = Terminal::new(quiet, brief, detail.view(), results);
    let report = evaluate(&terminal)?;
    terminal.into_results().finish(|| report.json(), quiet)?;
    if !report.unwritten.is_empty() {
        bail!("some results could not be written");
    }
    if brief && !quiet {
        show_outcome(&report);
    }
    if stop::asked() {
        bail!("interrupted");
    }
    match report.failed.as_slice() {
        [] if report.models.iter().any(fails) => Ok(ExitCode::from(EXIT_CONDITION)),
        [] => Ok(ExitCode::SUCCESS),
        [only] if n == 1 => bail!("{}", only.error),
        failed => bail!("{} of {n} could not be evaluated", failed.len()),
    }
}

/// True if a condition of `--fail-if` holds for a model.
fn fails(model: &ModelReport) -> bool {
    model.conditions.iter().any(|one| one.failed)
}

/// Prints how many of several models fail a condition; each that fails has its own line.
fn show_outcome(report: &Report) {
    let models = report.models.iter();
    let judged = models.filter(|model| !model.conditions.is_empty());
    let n_failed = judged.clone().filter(|model| fails(model)).count();
    let n = judged.count() as u64;
    if n_failed > 0 {
        say!("kl: --fail-if: {n_failed} of {} fail", count_of(n, "model"));
    } else if n > 0 {
        say!("kl: --fail-if: none of {} fails", count_of(n, "model"));
    }
}
