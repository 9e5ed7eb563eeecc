//! Several evaluations against one reference, one after another: what is done stays done.

use std::path::{Path, PathBuf};

use anyhow::{Error, Result};

use crate::commands::observer::{Event, Watch};
use crate::commands::report::RunTable;
use crate::commands::settings::ResultSettings;
use crate::pipeline::RowsHere;
use crate::report::{Failure, HereInfo, ModelReport, ReferenceInfo, Report};

/// An evaluation that came to an end.
pub struct Evaluated {
    pub report: ModelReport,
    /// Why its sidecar could not be written, if it could not.
    pub unwritten: Option<Error>,
    /// Where the reference's rows were computed; `None` where they are stored.
    pub here: Option<RowsHere>,
}

/// Evaluates the models at `paths`, or files with their rows. The observer gets the report so far
/// after each, from the second on a table of all models so far, and one that cannot be evaluated
/// does not stop the others.
///
/// `look_ahead` checks a model before hours are spent on those before it. `evaluate` is also told
/// whether its model is the last.
pub fn evaluate_each(
    watch: &Watch<'_>,
    reference: ReferenceInfo,
    paths: &[PathBuf],
    settings: &ResultSettings,
    look_ahead: impl Fn(&Path) -> Result<()>,
    mut evaluate: impl FnMut(&Path, &ReferenceInfo, bool) -> Result<Evaluated>,
) -> Report {
    let mut report = Report::new(reference);
    let several = paths.len() > 1;
    let mut table = RunTable::new(settings);
    let mut usable = Vec::new();
    for path in paths {
        // A single model is opened at once, which finds the same faults.
        let looked = if several { look_ahead(path) } else { Ok(()) };
        match looked {
            Ok(()) => usable.push(path),
            Err(error) => fail(watch, &mut report, path, &error, several),
        }
    }
    report.complete = usable.is_empty();
    publish(watch, &mut report);
    for (index, path) in usable.iter().enumerate() {
        if watch.should_stop() {
            break;
        }
        let is_last = index + 1 == usable.len();
        match evaluate(path, &report.reference, is_last) {
            Ok(evaluated) => {
                if let Some(states) = &mut report.reference.states {
                    states.here = evaluated.here.map(HereInfo::from);
                }
                if let Some(error) = evaluated.unwritten {
                    let error = one_line(&error);
                    watch.event(&Event::Failed(&error));
                    report.unwritten.push(error);
                }
                let is_interrupted = evaluated.report.interrupted.is_some();
                add(watch, &mut report, path, evaluated.report, several);
                if !is_interrupted && let Some(comparison) = table.compare(&report, watch) {
                    let comparison = &comparison;
                    watch.event(&Event::Compared {
                        comparison,
                        is_last,
                    });
                }
                if is_interrupted {
                    publish(watch, &mut report);
                    break;
                }
            }
            Err(_) if watch.should_stop() => break,
            Err(error) => fail(watch, &mut report, path, &error, several),
        }
        report.complete = is_last;
        publish(watch, &mut report);
    }
    report.warnings = watch.warnings();
    report
}

fn add(watch: &Watch<'_>, report: &mut Report, path: &Path, model: ModelReport, several: bool) {
    watch.event(&Event::Evaluated(&model, &report.reference));
    if model.summary.n_tokens == 0 && model.interrupted.is_none() {
        let error = Error::msg(format!("{}: no token could be scored", path.display()));
        fail(watch, report, path, &error, several);
    }
    report.models.push(model);
}

fn publish(watch: &Watch<'_>, report: &mut Report) {
    report.warnings = watch.warnings();
    watch.event(&Event::Report(report));
}

/// Notes that a model could not be evaluated, and reports it where others follow.
fn fail(watch: &Watch<'_>, report: &mut Report, path: &Path, error: &Error, several: bool) {
    let error = one_line(error);
    if several {
        watch.event(&Event::Failed(&error));
    }
    report.failed.push(Failure {
        path: path.display().to_string(),
        error,
    });
}

/// An error and its causes, in one line.
pub fn one_line(error: &Error) -> String {
    format!("{error:#}").replace('\n', " ")
}
