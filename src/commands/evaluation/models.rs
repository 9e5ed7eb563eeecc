//! Several evaluations against one reference, one after another: what is done stays done.

use anyhow::{Error, Result};

use crate::commands::observer::{Event, Watch, one_line};
use crate::commands::report::{Comparer, Row};
use crate::commands::settings::{ResultSettings, Sidecar};
use crate::commands::subject::Subject;
use crate::pipeline::RowsHere;
use crate::report::comparison::{Comparison, NEAR};
use crate::report::{Failure, ModelReport, ReferenceInfo, Report};

/// An evaluation that came to an end.
pub struct Evaluated {
    pub report: ModelReport,
    /// Its row in the table of several.
    pub row: Row,
    /// True if its sidecar was written: it may have been whole already.
    pub wrote: bool,
    /// Why its sidecar could not be written, if it could not.
    pub unwritten: Option<Error>,
    /// Where the reference's rows were computed; `None` where they are stored.
    pub here: Option<RowsHere>,
}

/// Evaluates models, or files with their rows. The observer gets the report so far after each, and at
/// the end a comparison of several. One that cannot be evaluated does not stop the others.
///
/// `look_ahead` checks an evaluation before hours are spent on those before it. `evaluate` is also told
/// whether it is the last.
pub fn evaluate_each(
    watch: &Watch<'_>,
    reference: ReferenceInfo,
    subjects: &[Subject],
    settings: &ResultSettings,
    look_ahead: impl Fn(&Subject) -> Result<()>,
    mut evaluate: impl FnMut(&Subject, bool) -> Result<Evaluated>,
) -> Report {
    let mut report = Report {
        reference,
        ..Report::default()
    };
    let several = subjects.len() > 1;
    let mut usable = Vec::new();
    let mut evaluated_models = Vec::new();
    let mut comparer = Comparer::new(settings.confidence, settings.clusters, NEAR);
    for (index, subject) in subjects.iter().enumerate() {
        // A single model is opened at once, which finds the same faults.
        let looked = if several { look_ahead(subject) } else { Ok(()) };
        match looked {
            Ok(()) => usable.push((index, subject)),
            Err(error) => fail(watch, &mut report, subject, &error, several),
        }
    }
    report.complete = usable.is_empty();
    publish(watch, &mut report);
    for (i, (index, subject)) in usable.iter().copied().enumerate() {
        if watch.should_stop() {
            break;
        }
        let is_last = i + 1 == usable.len();
        watch.evaluates(several.then_some(index));
        match evaluate(subject, is_last) {
            Ok(evaluated) => {
                if let Some(states) = &mut report.reference.states {
                    states.here = evaluated.here;
                }
                if let Some(error) = evaluated.unwritten {
                    let error = one_line(&error);
                    watch.event(&Event::Failed(&error));
                    report.unwritten.push(error);
                }
                let model = evaluated.report;
                let is_interrupted = model.interrupted.is_some();
                if several && !is_interrupted {
                    comparer.push(index, evaluated.row);
                }
                evaluated_models.push((index, model.label.clone()));
                let written = model.sidecar.clone().filter(|_| evaluated.wrote);
                watch.event(&Event::Evaluated {
                    model: &model,
                    reference: &report.reference,
                    index,
                    of: subjects.len(),
                });
                if model.summary.n_tokens == 0 && !is_interrupted {
                    let error = Error::msg(format!(
                        "{}: no token could be scored",
                        subject.path.display()
                    ));
                    fail(watch, &mut report, subject, &error, several);
                }
                report.models.push(model);
                if let Some(sidecar) = written {
                    watch.event(&Event::Wrote(&sidecar));
                }
                if is_interrupted {
                    publish(watch, &mut report);
                    break;
                }
            }
            Err(_) if watch.should_stop() => break,
            Err(error) => fail(watch, &mut report, subject, &error, several),
        }
        report.complete = is_last;
        publish(watch, &mut report);
    }
    watch.evaluates(None);
    if comparer.n_rows() > 1 {
        let comparison = compare(settings, comparer, &report.models, watch);
        watch.event(&Event::Compared(&comparison));
    }
    watch.warn_of_some(&evaluated_models);
    report.warnings = watch.warnings();
    report
}

fn publish(watch: &Watch<'_>, report: &mut Report) {
    report.warnings = watch.warnings();
    watch.event(&Event::Report(report));
}

/// Notes that a model could not be evaluated, and reports it where others follow.
fn fail(watch: &Watch<'_>, report: &mut Report, subject: &Subject, error: &Error, several: bool) {
    let error = one_line(error);
    let error = match &subject.cell {
        Some(cell) => format!("{cell}: {error}"),
        None => error,
    };
    if several {
        watch.event(&Event::Failed(&error));
    }
    report.failed.push(Failure {
        path: subject.path.display().to_string(),
        error,
    });
}

/// Compares the models of a run. Without sidecars, or if the models were evaluated on different
/// tokens, there are no ratios, and the table says why.
fn compare(
    settings: &ResultSettings,
    comparer: Comparer,
    models: &[ModelReport],
    watch: &Watch<'_>,
) -> Comparison {
    let is_unwritten = |model: &ModelReport| model.interrupted.is_none() && model.sidecar.is_none();
    let no_sidecar = "not every model has left a sidecar";
    let why = match settings.sidecar {
        _ if watch.should_stop() => "the run was interrupted",
        Sidecar::None => "--no-sidecar leaves nothing to compare the models by, token by token",
        _ if settings.part.is_some() => {
            "these are parts: kl report compares them once all are there"
        }
        _ if models.iter().any(is_unwritten) => no_sidecar,
        _ => match comparer.compare(watch) {
            Ok(comparison) if comparison.not_compared.is_empty() => return comparison,
            Ok(_) => "the models were not evaluated on the same tokens (--until, -n)",
            Err(_) => no_sidecar,
        },
    };
    comparer.without_pairs(why)
}
