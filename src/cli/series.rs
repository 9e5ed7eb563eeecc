//! Several evaluations against one reference, one after the other: what is done stays done.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::results::Results;
use super::settings::ResultSettings;
use super::{Outcome, one_line, stop};
use crate::report::{Failure, ModelReport, ReferenceInfo, Report};

/// One of the series.
pub struct Turn<'t, 's> {
    pub path: &'t Path,
    /// Nothing comes after it.
    pub is_last: bool,
    pub reference: &'t ReferenceInfo,
    pub results: &'t mut Results<'s>,
}

/// Evaluates what is at `paths`, models or files in their place. Results are written after each,
/// and one that cannot be evaluated does not keep the others from it.
///
/// `look_ahead` sees what can be seen to be wrong with one before hours are spent on those before it.
pub fn run(
    settings: &ResultSettings,
    reference: ReferenceInfo,
    paths: &[PathBuf],
    look_ahead: impl Fn(&Path) -> Result<()>,
    mut evaluate: impl FnMut(Turn<'_, '_>) -> Result<ModelReport>,
) -> Result<Outcome> {
    let mut results = Results::new(settings)?;
    let mut report = Report {
        kl_version: env!("CARGO_PKG_VERSION"),
        reference,
        complete: false,
        models: Vec::new(),
        failed: Vec::new(),
    };
    let several = paths.len() > 1;
    let mut usable = Vec::new();
    for path in paths {
        // A single one is opened at once, which looks at the same things.
        let looked = if several { look_ahead(path) } else { Ok(()) };
        match looked {
            Ok(()) => usable.push(path),
            Err(error) => fail(&mut report, path, &error, several),
        }
    }
    report.complete = usable.is_empty();
    results.write(&report);
    let mut usable = usable.into_iter().peekable();
    while let Some(path) = usable.next() {
        if stop::asked() {
            break;
        }
        let is_last = usable.peek().is_none();
        match evaluate(Turn {
            path,
            is_last,
            reference: &report.reference,
            results: &mut results,
        }) {
            Ok(model) => {
                results.show(&model, &report.reference);
                if model.interrupted.is_some() {
                    report.models.push(model);
                    results.write(&report);
                    break;
                }
                tell_conditions(&model, settings.quiet);
                if model.summary.n_tokens == 0 {
                    let error = anyhow!("{}: no token could be scored", path.display());
                    fail(&mut report, path, &error, several);
                }
                report.models.push(model);
            }
            Err(_) if stop::asked() => break,
            Err(error) => fail(&mut report, path, &error, several),
        }
        report.complete = is_last;
        results.write(&report);
    }
    results.finish(&report)?;
    stop::check()?;
    match report.failed.as_slice() {
        [] if report.models.iter().any(fails) => Ok(Outcome::ConditionFailed),
        [] => Ok(Outcome::Done),
        [only] if !several => bail!("{}", only.error),
        failed => bail!(
            "{} of {} models could not be evaluated",
            failed.len(),
            paths.len()
        ),
    }
}

/// Says what became of each condition; of those that did not fail nothing with `-q`.
fn tell_conditions(model: &ModelReport, quiet: bool) {
    let verdicts = model.conditions.iter();
    for verdict in verdicts.filter(|verdict| verdict.failed || !quiet) {
        say!("kl: {}: {verdict}", model.model.path);
    }
}

/// Whether a condition failed.
fn fails(model: &ModelReport) -> bool {
    model.conditions.iter().any(|verdict| verdict.failed)
}

/// Notes that one could not be evaluated, and says so where others go on.
fn fail(report: &mut Report, path: &Path, error: &anyhow::Error, say_so: bool) {
    let error = one_line(error);
    if say_so {
        say!("kl: {error}");
    }
    report.failed.push(Failure {
        path: path.display().to_string(),
        error,
    });
}
